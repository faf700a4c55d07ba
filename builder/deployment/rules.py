"""The checks of preflight. Each has a number, explained in docs/preflight.md, and a fix."""

from __future__ import annotations

import functools
import json
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Generic, TypeVar

from tritonclient.grpc import model_config_pb2 as pb

from builder.deployment.models import Model, folder_bytes
from builder.deployment.server_facts import ServerFacts
from builder.errors import PublishError
from builder.serving import features
from builder.store import SIDECAR, published
from builder.triton import AMPERE_PLUS, damage, dtypes, ensemble, section, versions

ERROR, WARNING = "error", "warning"
"""Severities. ERROR: the server would not serve all of it. WARNING: it serves it, with a risk."""
CLIENT_SHM_RELEASE = "26.04"
"""From this release on, clients need --allow-client-shm=true to use shared memory."""
UNREADABLE, DAMAGED = "P01", "P02"
"""The numbers for a folder that is not a model, and for the only check that reads every file."""
REPUBLISH = "publish it again: trt-build repo"

Models = Mapping[str, Model]
ModelCheck = Callable[[Model, Models, ServerFacts], Iterator[str]]
"""A check that yields the problems of one model."""
Problems = Iterator[tuple[str, str]]
"""Pairs of a subject and its problem."""
ServerCheck = Callable[[Path, Models, ServerFacts], Problems]
Check = TypeVar("Check", ModelCheck, ServerCheck)


@dataclass(frozen=True)
class Rule(Generic[Check]):
    """A check with its number, and the fix and severity of its findings."""

    number: str
    fix: str
    severity: str
    check: Check


MODEL_RULES: list[Rule[ModelCheck]] = []
"""The checks of each model."""
SERVER_RULES: list[Rule[ServerCheck]] = []
"""The checks of the server with all models."""


def _rule(
    rules: list[Rule[Check]], number: str, fix: str, severity: str
) -> Callable[[Check], Check]:
    """Register the decorated check in `rules`."""

    def add(check: Check) -> Check:
        rules.append(Rule(number, fix, severity, check))
        return check

    return add


def _model_rule(
    number: str, fix: str, severity: str = ERROR
) -> Callable[[ModelCheck], ModelCheck]:
    return _rule(MODEL_RULES, number, fix, severity)


def _server_rule(
    number: str, fix: str, severity: str = ERROR
) -> Callable[[ServerCheck], ServerCheck]:
    return _rule(SERVER_RULES, number, fix, severity)


@_model_rule(DAMAGED, REPUBLISH)
def _damaged(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    is_record = (model.folder / SIDECAR).is_file()
    if is_record and not published.is_sealed(model.record):
        yield f"{SIDECAR} is not the file that was published"
    recorded = {
        name: digest
        for name, digest in (model.record.get("files") or {}).items()
        if not name.startswith("goldens/")
    }
    for name, exists in damage.damaged(model.folder, recorded):
        state = "is not the file that was published" if exists else "is missing"
        yield f"{name} {state}"


@_model_rule("P03", "move it out of the model's folder")
def _foreign(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    for number in versions.foreign(model.folder):
        yield f"Triton would serve {number}/, which trt-build did not write"


@_model_rule("P04", "serve with NVIDIA's image, or build with --serve-as python")
def _backend(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    needed = model.config.backend
    if needed and server.backends is not None and needed not in server.backends:
        yield f"{server.name} has no backend {needed!r}"


@_model_rule(
    "P05", "build with --serve-as python, or with --flavor tensorrt on a GPU host"
)
def _flavor(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    if model.runs_plan and published.flavor_of(model.plan) == "tensorrt-rtx":
        yield (
            "its plan was built with TensorRT for RTX, which Triton's TensorRT backend"
            " does not load"
        )


@_model_rule(
    "P06",
    "build with the server's TensorRT, or serve with the image that repo --write-env names",
)
def _tensorrt(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    version = str(model.plan.get("tensorrt") or "")
    if not (model.runs_plan and version and server.release and server.release.tensorrt):
        return
    if published.flavor_of(model.plan) == "tensorrt-rtx":
        return
    plan_version = tuple(int(part) for part in version.split(".") if part.isdigit())
    parts = 3
    if (model.plan.get("options") or {}).get("version_compatible"):
        parts = 1
    known = server.release.tensorrt
    leading = {known_version[:parts] for known_version in known}
    if plan_version[:parts] not in leading:
        server_versions = " or ".join(
            ".".join(map(str, known_version)) for known_version in known
        )
        yield (
            f"its plan was built with TensorRT {version}, and {server.name} has"
            f" {server_versions} (confidence {server.release.confidence})"
        )


@_model_rule("P07", "serve on a host with a GPU, or build with --serve-as python")
def _no_gpu(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    if model.runs_plan and server.capabilities == ():
        yield f"Triton's TensorRT backend needs a GPU, and {server.name} has none"


@_model_rule(
    "P07", "build it on such a GPU, and join the repositories with trt-build merge"
)
def _other_gpu(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    if not model.runs_plan:
        return
    ampere = (model.plan.get("options") or {}).get("hardware_compatible") == AMPERE_PLUS
    for capability in dict.fromkeys(server.capabilities or ()):
        fits = capability in model.capabilities or (ampere and float(capability) >= 8.0)
        if model.capabilities and not fits:
            yield (
                f"its plan is for compute capability {', '.join(sorted(model.capabilities))}, and"
                f" {server.name} has a GPU of {capability}"
            )


@_model_rule("P08", "update the NVIDIA driver, or use an older release")
def _driver(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    release = server.release
    if not (model.runs_plan and server.cuda and release and release.cuda):
        return
    if int(server.cuda.split(".")[0]) < int(release.cuda.split(".")[0]):
        yield (
            f"{server.name} has CUDA {release.cuda}, and the driver supports only"
            f" {server.cuda}"
        )


@_model_rule(
    "P09", "lower max_batch_size in config.pbtxt, or build with a larger maximum"
)
def _batch(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    size = model.config.max_batch_size
    reached = [
        shapes["max"][0]
        for profile in model.profiles
        for shapes in profile.values()
        if shapes.get("max")
    ]
    if size and reached and size > max(reached):
        yield f"max_batch_size is {size}, and no profile takes more than {max(reached)} rows"


@_model_rule(
    "P10", "correct instance_group in config.pbtxt, or build with that profile"
)
def _profiles(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    count = len(model.profiles)
    for group in model.config.instance_group:
        for index in group.profile:
            if count and not (index.isdigit() and int(index) < count):
                yield f"an instance group names profile {index}, and the plan has {count}"


@_model_rule("P11", "correct config.pbtxt")
def _endpoints(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    """Compare the config's inputs and outputs with those of the plan."""
    for side in ("input", "output"):
        recorded = {
            tensor["name"]: tensor for tensor in model.record.get(f"{side}s") or ()
        }
        stated = {tensor.name: tensor for tensor in getattr(model.config, side)}
        for name in sorted(recorded.keys() ^ stated.keys()):
            where = "the plan" if name in recorded else "config.pbtxt"
            yield f"only {where} has {side} {name!r}"
        for name in sorted(recorded.keys() & stated.keys()):
            max_batch = model.config.max_batch_size
            problem = _differs(recorded[name], stated[name], max_batch)
            if problem:
                yield f"{side} {name!r} {problem}"


def _differs(
    recorded: Mapping[str, Any], stated: Any, max_batch_size: int
) -> str | None:
    expected = dtypes.by_name(recorded["served_dtype"]).config
    if stated.data_type != pb.DataType.Value(expected):
        name = pb.DataType.Name(stated.data_type)
        return f"is {name} in config.pbtxt, and the plan has {expected}"
    shape = list(recorded["shape"])
    if max_batch_size:
        shape = shape[1:]
    dims = list(stated.dims)
    if not shape and dims == [1]:
        return None
    if len(shape) == len(dims):
        pairs = zip(shape, dims, strict=True)
        if all(-1 in pair or pair[0] == pair[1] for pair in pairs):
            return None
    return f"has dims {dims} in config.pbtxt, and the plan has {shape}"


@_model_rule(
    "P20",
    "rename the folder back; for another name, rename the model file and run trt-build repo",
)
def _name(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    stated = model.config.name
    if stated and stated != model.folder.name:
        yield f"its config.pbtxt names it {stated!r}, and Triton refuses a folder of another name"


@_model_rule("P12", REPUBLISH)
def _wiring(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    missing = [name for name in model.steps if name not in models]
    for name in missing:
        yield f"its step {name!r} is not in the repository"
    if model.steps and not missing:
        try:
            ensemble.check(
                model.config, {name: models[name].config for name in model.steps}
            )
        except PublishError as error:
            for line in error.message.splitlines()[1:]:
                yield line.strip()


@_server_rule(
    "P13", "free disk space, or remove old versions with trt-build prune", WARNING
)
def _disk(repository: Path, models: Models, server: ServerFacts) -> Problems:
    """Check disk space: a publication writes the new model beside the former one."""
    largest = max((folder_bytes(model.folder) for model in models.values()), default=0)
    free = shutil.disk_usage(repository).free
    if free < largest:
        yield (
            str(repository),
            f"{_mib(free)} are free, and a new version of its largest model needs {_mib(largest)}",
        )


@_server_rule(
    "P14", "use fewer instances, fewer models for each server, or a larger GPU"
)
def _gpu_memory(repository: Path, models: Models, server: ServerFacts) -> Problems:
    """Check GPU memory: at least the plans' bytes for each instance. Activations need more."""
    needed = sum(
        model.instances * model.plan_bytes
        for model in models.values()
        if _may_use_gpu(model)
    )
    if server.gpu_memory and needed > min(server.gpu_memory):
        yield (
            "GPU memory",
            f"the plans of all instances need {_mib(needed)}, and a GPU has"
            f" {_mib(min(server.gpu_memory))}",
        )


def _may_use_gpu(model: Model) -> bool:
    """Whether an instance group is not for the CPU alone. The default group is for GPUs."""
    groups = model.config.instance_group
    if not groups:
        return True
    return any(group.kind != pb.ModelInstanceGroup.KIND_CPU for group in groups)


@_server_rule(
    "P15", "set a larger SHM_SIZE (docker run --shm-size), or use fewer instances"
)
def _shared_memory(repository: Path, models: Models, server: ServerFacts) -> Problems:
    """Check shared memory: the Python backend moves every tensor through it."""
    needed = sum(model.shared_memory for model in models.values())
    if server.shm_bytes is not None and needed > server.shm_bytes:
        yield (
            "shared memory",
            f"the Python models need about {_mib(needed)} of /dev/shm, and {server.name} has"
            f" {_mib(server.shm_bytes)}",
        )


@_server_rule(
    "P16", "start it with --allow-client-shm=true, where all clients are trusted"
)
def _client_shared_memory(
    repository: Path, models: Models, server: ServerFacts
) -> Problems:
    release = server.release
    if server.client_shared_memory and release and release.tag >= CLIENT_SHM_RELEASE:
        yield (
            "shared memory",
            f"{server.name} refuses shared memory of clients by default",
        )


@_server_rule("P17", "choose another port, or stop the program that has it", WARNING)
def _ports(repository: Path, models: Models, server: ServerFacts) -> Problems:
    for flag, port in server.ports.items():
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                yield f"port {port}", f"it cannot be used for {flag}: {error.strerror}"


@functools.cache
def advisories() -> dict[str, Any]:
    """Return the dated table of known vulnerabilities (advisories.json)."""
    text = (files("builder") / "deployment" / "advisories.json").read_text(
        encoding="utf-8"
    )
    table: dict[str, Any] = json.loads(text)
    return table


@_server_rule(
    "P18",
    "use that release or a newer one; until then only trusted clients (docs/security.md)",
    WARNING,
)
def _vulnerabilities(repository: Path, models: Models, server: ServerFacts) -> Problems:
    release = server.release
    if release is None:
        return
    table = advisories()
    unfixed = [
        advisory
        for advisory in table["advisories"]
        if release.tag < advisory["fixed_in"]
    ]
    if unfixed:
        names = ", ".join(advisory["id"] for advisory in unfixed)
        yield (
            f"Triton {release.tag}",
            f"{len(unfixed)} known advisories (table of {table['as_of']}), fixed in Triton"
            f" {max(advisory['fixed_in'] for advisory in unfixed)}: {names}",
        )


@_server_rule(
    "P19",
    "use an image that is based on this one and has torch installed for its Python",
    WARNING,
)
def _torch(repository: Path, models: Models, server: ServerFacts) -> Problems:
    python = sorted(name for name, model in models.items() if model.is_python)
    if python and server.torch is False:
        names = ", ".join(map(repr, python))
        yield (
            "torch",
            f"the Python backend runs {names} with torch, which NVIDIA's image does not have",
        )


@_server_rule("P23", "make the resource global in all models, or in none")
def _resource_kinds(repository: Path, models: Models, server: ServerFacts) -> Problems:
    """Check the rate limiter's resources: Triton loads no model that sees one otherwise than the
    models before it.
    """
    kinds: dict[str, dict[bool, str]] = {}
    for model in models.values():
        for group in model.config.instance_group:
            for resource in group.rate_limiter.resources:
                kinds.setdefault(resource.name, {}).setdefault(
                    getattr(resource, "global"), model.name
                )
    for name, scopes in kinds.items():
        if len(scopes) > 1:
            yield (
                f"resource {name}",
                f"it is global in {scopes[True]!r}, and of each device in {scopes[False]!r}",
            )


FIELD_RELEASES = {"model_metrics": "24.11"}
"""The first release that can read a field of the config."""


@_model_rule("P22", "use a newer release, or remove the field from the manifest")
def _newer_fields(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    for field, tag in FIELD_RELEASES.items():
        is_set = (
            field in model.config.DESCRIPTOR.fields_by_name
            and model.config.HasField(field)
        )
        if is_set and server.release and server.release.tag < tag:
            yield f"{server.name} cannot read {field} of config.pbtxt, which is from {tag} on"


@_model_rule("P24", "correct config.pbtxt")
def _refused_values(model: Model, models: Models, server: ServerFacts) -> Iterator[str]:
    for field, broken in section.refused(model.config).items():
        for text in broken:
            yield f"{field} of config.pbtxt: {text}"


@_model_rule(
    "P21",
    "write versions: {keep: 1} in the manifest, so that each publication gets a new"
    " version number",
    WARNING,
)
def _stale_responses(
    model: Model, models: Models, server: ServerFacts
) -> Iterator[str]:
    if model.config.response_cache.enable and not features.keeps_versions(model.folder):
        yield (
            "its version number does not change with its content: after an update, the response"
            " cache still has responses of the former model"
        )


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
