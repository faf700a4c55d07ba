"""What is to be built, decided without torch: which models are unchanged, and an order for each of
the others.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from builder import processes, store
from builder.engine import BuildOptions, flavour, gpu
from builder.engine.caches import cache_folder
from builder.errors import UsageError
from builder.manifest.spec import ModelSpec, TensorSpec
from builder.repository import targets
from builder.repository.result import SHOWN, ModelResult, Progress
from builder.store import edits

PERFORM = "builder.repository.model:perform"
MODULES = (
    "builder.conversion",
    "builder.parity",
    "builder.partition",
    "builder.triton",
    "builder.torchscript",
)
"""What the process that builds are forked from imports before it forks."""


@dataclass(frozen=True)
class Order:
    """One model to build, picklable: `request` is what it is built from, `last` the parts of its
    last plans by label, `because` why it must be built, `threads` how many torch may use (0: all),
    `graphs` the folder for the sequence of lowered graphs.
    """

    spec: ModelSpec
    out: Path
    serve_as: str = "auto"
    layout: str = "auto"
    flavour: str = "auto"
    options: BuildOptions = field(default_factory=BuildOptions)
    store: str | None = None
    rebuild: bool = False
    plugins: tuple[str, ...] = ()
    request: Mapping[str, Any] = field(default_factory=dict)
    last: Mapping[str, Any] = field(default_factory=dict)
    because: str = ""
    threads: int = 0
    graphs: Path | None = None
    torch_steps: str = "auto"
    edits: str = edits.REPORT
    """What becomes of a published config that was edited by hand (builder.store.edits)."""

    @property
    def folder(self) -> Path:
        """Where the model is published."""
        return self.out / self.spec.name

    @property
    def reproduce(self) -> str:
        """The command that builds this model alone, in the process that a debugger starts."""
        given = [] if self.spec.manifest else list(_in_place_of_a_manifest(self.spec))
        words = [
            "trt-build",
            "repo",
            str(self.spec.path),
            "--out",
            str(self.out),
            "--rebuild",
            "--no-isolate",
            *given,
        ]
        words += ["--precision", self.spec.precision, "--flavour", self.flavour, *_flags(self)]
        return shlex.join(words)


def settled(order: Order, hashes: store.Hashes) -> Order | ModelResult:
    """The order with its request, and why it must be built; or the result, where what is published
    is unchanged.
    """
    wanted = request_of(order, hashes)
    said = recorded(order, wanted)
    reason = "--rebuild" if order.rebuild else stale_because(order, wanted, said, hashes)
    if reason is None and order.edits == edits.OVERWRITE and edits.edits(order.folder, hashes):
        reason = "--overwrite-edits"
    if reason is None:
        shown = {
            key: _tuple(said.get("result", {}).get(key, getattr(ModelResult, key))) for key in SHOWN
        }
        noted = edits.notes(order.folder, hashes)
        shown["warnings"] = (*shown["warnings"], *noted)
        return ModelResult(order.spec.name, ok=True, path=order.folder, state="unchanged", **shown)
    try:
        edits.refuse(order.folder, hashes, order.edits)
    except UsageError as error:
        return ModelResult(order.spec.name, error=error, because=reason)
    parts = {label: made["parts"] for label, made in (said.get("plans") or {}).items()}
    return replace(order, options=options_of(order), request=wanted, because=reason, last=parts)


def options_of(order: Order) -> BuildOptions:
    """The manifest's options under the order's, as this host builds with them. Raises
    UsageError.
    """
    return targets.here(order.options.over(order.spec.build), order.flavour)


def request_of(order: Order, hashes: store.Hashes) -> dict[str, Any]:
    """What the order's model is to be built from."""
    return store.request(
        order.spec,
        hashes,
        serve_as=order.serve_as,
        layout=order.layout,
        torch_steps=order.torch_steps,
        options=options_of(order),
        plugins=order.plugins,
    )


def recorded(order: Order, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """What was last built: as the published model records it, else as the store was told of the
    same file under that name (a store is shared, and another project's model may have the name);
    empty where neither knows.
    """
    said = store.sidecar(order.folder) or {}
    if "request" in said or not order.store:
        return said
    last = store.last(order.store, order.spec.name) or {}
    return last if (last.get("request") or {}).get("source") == wanted["source"] else {}


def stale_because(
    order: Order, wanted: Mapping[str, Any], said: Mapping[str, Any], hashes: store.Hashes
) -> str | None:
    """Why the model must be built, in words; None where what is published is what is wanted."""
    reason = store.stale(order.folder, wanted, hashes)
    if reason is None or store.recorded_request(order.folder) is not None:
        return reason
    return store.because(said.get("request"), wanted) or "it is not published"


def perform(
    orders: Sequence[Order], progress: Progress, jobs: int, isolate: bool
) -> list[ModelResult]:
    """The orders' results, each built in a process of its own unless told otherwise."""
    if not orders:
        return []
    if not isolate:
        from builder.repository import model

        return [model.perform(order, progress) for order in orders]
    jobs = jobs or default_jobs()
    threads = max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else 0
    tasks = [
        processes.Task(
            PERFORM,
            (replace(order, threads=threads),),
            progress,
            order.reproduce,
            limits=limits(order.spec),
            sandbox=sandbox(order),
        )
        for order in orders
    ]
    answers = processes.run(tasks, jobs, environments(), modules=MODULES)
    return [_result(order, answer) for order, answer in zip(orders, answers, strict=True)]


def limits(spec: ModelSpec) -> processes.Limits:
    """The limits of the worker that builds the model."""
    memory = spec.limits.memory_mib
    return processes.Limits(
        stage_seconds=spec.limits.stage_seconds,
        memory_bytes=None if memory is None else memory << 20,
    )


def sandbox(order: Order, publishes: bool = True) -> processes.Sandbox:
    """What the order's worker may write: the repository with the staging folders beside it, the
    store, the caches, and `graphs`. Only a store on another machine needs the network. Without
    `publishes` it may write to the caches only.
    """
    if not publishes:
        return processes.Sandbox((cache_folder(),), gpu=True)
    folders = [order.out.resolve().parent, cache_folder()]
    folders += [order.graphs] if order.graphs else []
    remote = order.store is not None and "://" in order.store
    if order.store and not remote:
        folders.append(Path(order.store))
    if order.options.timing_cache:
        folders.append(order.options.timing_cache.parent)
    for folder in folders:
        with contextlib.suppress(OSError):  # the worker reports what it cannot write
            folder.mkdir(parents=True, exist_ok=True)
    writable = tuple(folder.resolve() for folder in folders)
    return processes.Sandbox(writable, network=remote, gpu=True)


def default_jobs() -> int:
    """Two on each GPU that plans are timed on, so that one model is converted while another is
    built; else by cores.
    """
    if flavour.chosen() == "tensorrt":
        return 2 * max(1, len(same_kind()))
    return max(1, (os.cpu_count() or 1) // 4)


def environments() -> list[dict[str, str]]:
    """What pins a worker to its GPU, by uuid: one for each GPU of the first one's kind, for a plan
    is for one kind.
    """
    if flavour.chosen() != "tensorrt":
        return [{}]
    return [{"CUDA_VISIBLE_DEVICES": device.uuid} for device in same_kind()] or [{}]


def same_kind() -> list[gpu.Device]:
    """The GPUs that are of the kind of CUDA's first, which is the one that keys name."""
    devices = gpu.devices()
    return [
        d for d in devices if (d.name, d.capability) == (devices[0].name, devices[0].capability)
    ]


def _result(order: Order, answer: Any) -> ModelResult:
    if isinstance(answer, ModelResult):
        return answer
    return ModelResult(order.spec.name, error=answer, because=order.because)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _in_place_of_a_manifest(spec: ModelSpec) -> Iterator[str]:
    yield from (f"--input={_written(tensor)}" for tensor in spec.inputs)
    if spec.goldens:  # the sample's shapes are the inputs', its values are not
        yield f"--sample={spec.goldens}"


def _flags(order: Order) -> list[str]:
    plugins = [word for plugin in order.plugins for word in ("--plugin", plugin)]
    state = ["--state", order.spec.sequences.mode] if order.spec.state else []
    given = [*_unless_auto(order), *state, *plugins, *_written_options(order.options)]
    kept = ["--store", order.store] if order.store else ["--no-store"]
    return ["--serve-as", order.serve_as, "--layout", order.layout, *kept, *given]


def _unless_auto(order: Order) -> list[str]:
    return [] if order.torch_steps == "auto" else ["--torch-steps", order.torch_steps]


SPELLED = {
    "compute_capabilities": "target",
    "workspace_bytes": "workspace",
    "tactic_sources": "tactic-source",
}
"""Builder's options whose name on the command line is another."""


def _written_options(options: BuildOptions) -> Iterator[str]:
    """What is set of the builder's options as the command line takes it."""
    # the manifest's
    said = {name: value for name, value in options.set().items() if name != "profiling_verbosity"}
    said["compute_capabilities"] = [
        f"{major}.{minor}" for major, minor in options.compute_capabilities
    ]
    pools = said.pop("memory_pools", {})
    for name, value in (
        *said.items(),
        *(("pool", f"{pool}={limit}") for pool, limit in pools.items()),
    ):
        flag = f"--{SPELLED.get(name, name).replace('_', '-')}"
        for one in value if isinstance(value, list | tuple) else [value]:
            yield flag if one is True else f"{flag}={one}"


def _written(tensor: TensorSpec) -> str:
    """The spec as --input takes it."""
    axes = (
        str(axis) if isinstance(axis, int) else f"{axis}({','.join(map(str, tensor.dims[axis]))})"
        for axis in tensor.shape
    )
    return ":".join(filter(None, [tensor.name, tensor.dtype])) + ":" + "x".join(axes)
