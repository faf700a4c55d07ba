"""Finds what would keep a server from serving a repository, before the server is started.

Each check has a number, which docs/preflight.md explains with cause and remedy.
"""

from __future__ import annotations

import functools
import json
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from builder.deployment.models import Model, folder_bytes, read, readable
from builder.deployment.server_facts import ServerFacts, of_image, this_machine
from builder.errors import EnvironmentProblem, PublishError, UsageError
from builder.triton import AMPERE_PLUS, damage, dtypes, ensemble, releases, versions

ERROR, WARNING = "error", "warning"
"""The server would not serve it, or not all of it; it serves it, with a risk."""
CLIENT_SHM_RELEASE = "26.05"
"""From this release on, clients may use shared memory only with --allow-client-shm=true."""


@dataclass(frozen=True)
class Finding:
    """`number` as in docs/preflight.md, the model or other `subject`, what is wrong, the `fix`, and
    its severity.
    """

    number: str
    subject: str
    message: str
    fix: str
    severity: str = ERROR


Check = Callable[[Model, Mapping[str, Model], ServerFacts], Iterator[Finding]]


def preflight(
    repository: Path, server: ServerFacts, only: Sequence[str] = (), *, digests: bool = True
) -> list[Finding]:
    """What is wrong with serving `repository` (only the models of `only`, with their steps) by
    `server`, errors first. `digests` False skips the reading of all files. Raises UsageError where
    there is no repository.
    """
    if not repository.is_dir():
        raise UsageError(
            f"{repository} is not a model repository",
            fix="build one with trt-build repo MODELS --out REPOSITORY",
        )
    models: dict[str, Model] = {}
    found: list[Finding] = []
    for folder in sorted(path for path in repository.iterdir() if path.is_dir()):
        try:
            models[folder.name] = read(folder)
        except (OSError, ValueError, UsageError) as error:
            found.append(
                Finding("P01", folder.name, f"it cannot be read: {error}", "publish it again")
            )
    if only:
        steps = {one for name in only if name in models for one in models[name].steps}
        models = {name: one for name, one in models.items() if name in {*only, *steps}}
        found = [one for one in found if one.subject in {*only, *steps}]
    for model in models.values():
        for check in (*((_damaged,) if digests else ()), *CHECKS):
            found += check(model, models, server)
    found += _disk(repository, models)
    found += _gpu_memory(models, server)
    found += _shared_memory(models, server)
    found += _client_shared_memory(server)
    found += _ports(server)
    found += _vulnerabilities(server)
    return sorted(found, key=lambda one: (one.severity != ERROR, one.number, one.subject))


def _damaged(model: Model, models: Mapping[str, Model], server: ServerFacts) -> Iterator[Finding]:
    recorded = {
        name: digest
        for name, digest in (model.said.get("files") or {}).items()
        if not name.startswith("goldens/")
    }
    for name, is_there in damage.damaged(model.folder, recorded):
        state = "is not the file that was published" if is_there else "is missing"
        yield Finding("P02", model.name, f"{name} {state}", "publish it again: trt-build repo")


def _foreign(model: Model, models: Mapping[str, Model], server: ServerFacts) -> Iterator[Finding]:
    for number in versions.foreign(model.folder):
        yield Finding(
            "P03",
            model.name,
            f"Triton would serve {number}/, which trt-build did not write",
            "move it out of the model's folder",
        )


def _backend(model: Model, models: Mapping[str, Model], server: ServerFacts) -> Iterator[Finding]:
    needed = model.config.backend
    if needed and server.backends is not None and needed not in server.backends:
        yield Finding(
            "P04",
            model.name,
            f"{server.name} has no backend {needed!r}",
            "serve with NVIDIA's image, or build with --serve-as python",
        )


def _flavour(model: Model, models: Mapping[str, Model], server: ServerFacts) -> Iterator[Finding]:
    if model.runs_plan and model.plan.get("flavour") == "tensorrt-rtx":
        yield Finding(
            "P05",
            model.name,
            "its plan is of TensorRT for RTX, which Triton's TensorRT backend does not load",
            "build with --serve-as python, or with --flavour tensorrt on a GPU host",
        )


def _tensorrt(model: Model, models: Mapping[str, Model], server: ServerFacts) -> Iterator[Finding]:
    version = str(model.plan.get("tensorrt") or "")
    if not (model.runs_plan and version and server.release and server.release.tensorrt):
        return
    if model.plan.get("flavour") == "tensorrt-rtx":
        return
    wanted = tuple(int(part) for part in version.split(".") if part.isdigit())
    parts = 1 if (model.plan.get("options") or {}).get("version_compatible") else 3
    known = server.release.tensorrt
    if not any(one[:parts] == wanted[:parts] for one in known):
        has = " or ".join(".".join(map(str, one)) for one in known)
        yield Finding(
            "P06",
            model.name,
            f"its plan is of TensorRT {version}, and {server.name} has {has}"
            f" (confidence {server.release.confidence})",
            "build with the server's TensorRT, or serve with the image that repo --write-env names",
        )


def _gpu(model: Model, models: Mapping[str, Model], server: ServerFacts) -> Iterator[Finding]:
    if not model.runs_plan or server.capabilities is None:
        return
    if not server.capabilities:
        yield Finding(
            "P07",
            model.name,
            f"Triton's TensorRT backend needs a GPU, and {server.name} has none",
            "serve on a host with a GPU, or build with --serve-as python",
        )
        return
    ampere = (model.plan.get("options") or {}).get("hardware_compatible") == AMPERE_PLUS
    built = set(model.config.cc_model_filenames) or set(
        model.plan.get("compute_capabilities") or ()
    )
    for capability in dict.fromkeys(server.capabilities):
        fits = capability in built or (ampere and float(capability) >= 8.0)
        if built and not fits:
            yield Finding(
                "P07",
                model.name,
                f"its plan is for compute capability {', '.join(sorted(built))}, and {server.name}"
                f" has a GPU of {capability}",
                "build it on such a GPU, and join the repositories with trt-build merge",
            )


def _driver(model: Model, models: Mapping[str, Model], server: ServerFacts) -> Iterator[Finding]:
    release = server.release
    if not (model.runs_plan and server.cuda and release and release.cuda):
        return
    if int(server.cuda.split(".")[0]) < int(release.cuda.split(".")[0]):
        yield Finding(
            "P08",
            model.name,
            f"{server.name} has CUDA {release.cuda}, and the driver supports {server.cuda}",
            "update the NVIDIA driver, or use an older release",
        )


def _batch(model: Model, models: Mapping[str, Model], server: ServerFacts) -> Iterator[Finding]:
    size = model.config.max_batch_size
    reached = [
        shapes["max"][0]
        for profile in model.profiles
        for shapes in profile.values()
        if shapes.get("max")
    ]
    if size and reached and size > max(reached):
        yield Finding(
            "P09",
            model.name,
            f"max_batch_size is {size}, and no profile takes more than {max(reached)} rows",
            "lower max_batch_size in config.pbtxt, or build with a larger maximum",
        )


def _profiles(model: Model, models: Mapping[str, Model], server: ServerFacts) -> Iterator[Finding]:
    count = len(model.profiles)
    for group in model.config.instance_group:
        for index in group.profile:
            if count and not (index.isdigit() and int(index) < count):
                yield Finding(
                    "P10",
                    model.name,
                    f"an instance group names profile {index}, and the plan has {count}",
                    "correct instance_group in config.pbtxt, or build with that profile",
                )


def _endpoints(model: Model, models: Mapping[str, Model], server: ServerFacts) -> Iterator[Finding]:
    """The config's inputs and outputs against those that the plan was built with."""
    for side in ("input", "output"):
        recorded = {one["name"]: one for one in model.said.get(f"{side}s") or ()}
        stated = {one.name: one for one in getattr(model.config, side)}
        for name in sorted(recorded.keys() ^ stated.keys()):
            where = "the plan" if name in recorded else "config.pbtxt"
            yield Finding(
                "P11", model.name, f"only {where} has {side} {name!r}", "correct config.pbtxt"
            )
        for name in sorted(recorded.keys() & stated.keys()):
            if problem := _differs(recorded[name], stated[name], model.config.max_batch_size):
                yield Finding(
                    "P11", model.name, f"{side} {name!r} {problem}", "correct config.pbtxt"
                )


def _differs(recorded: Mapping[str, Any], stated: Any, max_batch_size: int) -> str | None:
    wanted = dtypes.by_name(recorded["served_dtype"]).config
    if stated.data_type != pb.DataType.Value(wanted):
        return f"is {pb.DataType.Name(stated.data_type)} in config.pbtxt, and the plan has {wanted}"
    shape = list(recorded["shape"])[1 if max_batch_size else 0 :]
    dims = list(stated.dims)
    if not shape and dims == [1]:
        return None
    fits = len(shape) == len(dims) and all(
        -1 in (one, other) or one == other for one, other in zip(shape, dims, strict=True)
    )
    return None if fits else f"has dims {dims} in config.pbtxt, and the plan has {shape}"


def _wiring(model: Model, models: Mapping[str, Model], server: ServerFacts) -> Iterator[Finding]:
    steps = model.steps
    missing = [name for name in steps if name not in models]
    for name in missing:
        yield Finding(
            "P12", model.name, f"its step {name!r} is not in the repository", "publish it again"
        )
    if steps and not missing:
        try:
            ensemble.check(model.config, {name: models[name].config for name in steps})
        except PublishError as error:
            for line in error.message.splitlines()[1:]:
                yield Finding("P12", model.name, line.strip(), "publish it again: trt-build repo")


def _disk(repository: Path, models: Mapping[str, Model]) -> Iterator[Finding]:
    """A publication writes the new model beside the former one."""
    largest = max((folder_bytes(model.folder) for model in models.values()), default=0)
    free = shutil.disk_usage(repository).free
    if free < largest:
        yield Finding(
            "P13",
            str(repository),
            f"{_mib(free)} are free, and a new version of its largest model needs {_mib(largest)}",
            "free disk space, or remove old versions with trt-build prune",
            WARNING,
        )


def _gpu_memory(models: Mapping[str, Model], server: ServerFacts) -> Iterator[Finding]:
    """At least the plans' bytes for each instance; activations come on top."""
    needed = sum(
        model.instances * model.plan_bytes
        for model in models.values()
        if any(
            group.kind != pb.ModelInstanceGroup.KIND_CPU for group in model.config.instance_group
        )
        or not model.config.instance_group
    )
    if server.gpu_memory and needed > min(server.gpu_memory):
        yield Finding(
            "P14",
            "GPU memory",
            f"the plans of all instances need {_mib(needed)}, and a GPU has"
            f" {_mib(min(server.gpu_memory))}",
            "fewer instances, fewer models for each server, or a larger GPU",
        )


def _shared_memory(models: Mapping[str, Model], server: ServerFacts) -> Iterator[Finding]:
    """The Python backend moves every tensor through shared memory."""
    needed = sum(model.shared_memory for model in models.values())
    if server.shm_bytes is not None and needed > server.shm_bytes:
        yield Finding(
            "P15",
            "shared memory",
            f"the Python models need about {_mib(needed)} of /dev/shm, and {server.name} has"
            f" {_mib(server.shm_bytes)}",
            "a larger SHM_SIZE (docker run --shm-size), or fewer instances",
        )


def _client_shared_memory(server: ServerFacts) -> Iterator[Finding]:
    release = server.release
    if server.client_shared_memory and release and release.tag >= CLIENT_SHM_RELEASE:
        yield Finding(
            "P16",
            "shared memory",
            f"{server.name} refuses shared memory of clients by default",
            "start it with --allow-client-shm=true, where all clients are trusted",
        )


def _ports(server: ServerFacts) -> Iterator[Finding]:
    for flag, port in server.ports.items():
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                held.bind(("127.0.0.1", port))
            except OSError as error:
                yield Finding(
                    "P17",
                    f"port {port}",
                    f"it cannot be used: {error.strerror}",
                    f"choose another port with {flag}, or stop what listens there",
                    WARNING,
                )


@functools.cache
def advisories() -> dict[str, Any]:
    """The dated table of known vulnerabilities (advisories.json)."""
    text = (files("builder") / "deployment" / "advisories.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def _vulnerabilities(server: ServerFacts) -> Iterator[Finding]:
    release = server.release
    if release is None:
        return
    table = advisories()
    open_ = [one for one in table["advisories"] if release.tag < one["fixed_in"]]
    if open_:
        newest = max(one["fixed_in"] for one in open_)
        names = ", ".join(one["id"] for one in open_)
        yield Finding(
            "P18",
            f"Triton {release.tag}",
            f"{len(open_)} known advisories (table of {table['as_of']}): {names}",
            f"Triton {newest} or newer; until then only trusted clients (docs/security.md)",
            WARNING,
        )


def expected_server(repository: Path) -> ServerFacts | None:
    """What the repository was built for: NVIDIA's container whose TensorRT loads its plans, else
    the server of this machine; None where neither is known.
    """
    built = {str(one.plan.get("tensorrt")) for one in readable(repository) if one.runs_plan}
    matches = [match for match in map(releases.for_tensorrt, sorted(built)) if match]
    try:
        return of_image(matches[0].release.tag) if matches else this_machine({})
    except EnvironmentProblem:
        return None


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"


CHECKS: tuple[Check, ...] = (
    _foreign,
    _backend,
    _flavour,
    _tensorrt,
    _gpu,
    _driver,
    _batch,
    _profiles,
    _endpoints,
    _wiring,
)
