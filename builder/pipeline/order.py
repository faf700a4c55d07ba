"""An order: one model to build with all of its settings, without torch."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from builder.engine import BuildOptions, Capability, gpu
from builder.errors import UsageError
from builder.manifest import ModelSpec, TensorSpec
from builder.store import edits

AMPERE = (8, 0)
"""The first compute capability of `hardware_compatible: ampere_plus`."""


@dataclass(frozen=True)
class Ended:
    """How a process that built a model ended without a result, and the fix: after a crash, or at
    the limit of a stage.
    """

    message: str
    fix: str


@dataclass(frozen=True)
class Order:
    """One model to build, picklable. `request` is everything that it is built from, `last` the
    parts of its last plans by label, `because` the reason for the build, `threads` the number of
    torch threads (0: all), `graphs` the folder for the sequence of lowered graphs.
    """

    spec: ModelSpec
    out: Path
    serve_as: str = "auto"
    layout: str = "auto"
    flavor: str = "auto"
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
    """The treatment of manual edits of a published config (builder.store.edits)."""
    stage: Path | None = None
    """The staging folder of the model; None creates one."""
    ended: Ended | None = None
    """How an earlier process that built this model ended. Torch then serves it."""
    share: bool = False
    """Whether goldens and timing caches are read from and written to the store."""
    accept_incompatible: bool = False
    """Whether the model may replace one with an incompatible interface."""

    @property
    def folder(self) -> Path:
        """The folder of the published model."""
        return self.out / self.spec.name

    @property
    def reproduce(self) -> str:
        """The command that builds only this model, in one process for a debugger."""
        manifest_flags = []
        if not self.spec.manifest:
            manifest_flags = list(_in_place_of_a_manifest(self.spec))
        words = [
            "trt-build",
            "repo",
            str(self.spec.path),
            "--out",
            str(self.out),
            "--rebuild",
            "--no-isolate",
            *manifest_flags,
        ]
        words += [
            "--precision",
            self.spec.precision,
            "--flavor",
            self.flavor,
            *_flags(self),
        ]
        return shlex.join(words)


def options_of(order: Order) -> BuildOptions:
    """The order's options merged with the manifest's, resolved for this host. Raises UsageError."""
    return for_this_host(order.options.over(order.spec.build), order.flavor)


def for_this_host(options: BuildOptions, flavor: str) -> BuildOptions:
    """The options resolved for this host: RTX builds for all targets, TensorRT for the GPU of the
    host. Raises UsageError if that GPU is not a target.
    """
    device = gpu.current()
    targets = options.compute_capabilities
    if flavor == "tensorrt-rtx" or not targets or device is None:
        return options
    if not any(serves(options, device.capability, target) for target in targets):
        alternatives = [
            f"CUDA_VISIBLE_DEVICES={other_device.uuid}"
            for other_device in gpu.devices()
            if other_device.capability in targets
        ]
        fix = "build on a host that has one, then `trt-build merge`"
        if alternatives:
            fix = alternatives[0]
        raise UsageError(
            f"this host's {device.name} is {target_name(device.capability)}, which is no --target",
            fix=fix,
        )
    return replace(options, compute_capabilities=())


def serves(options: BuildOptions, built: Capability, target: Capability) -> bool:
    """Whether a plan for one GPU runs on the other."""
    return built == target or (
        options.hardware_compatible == "ampere_plus" and target >= AMPERE <= built
    )


def target_name(capability: Capability) -> str:
    return f"sm_{capability[0]}{capability[1]}"


def _in_place_of_a_manifest(spec: ModelSpec) -> Iterator[str]:
    yield from (f"--input={_input_text(tensor)}" for tensor in spec.inputs)
    if spec.goldens:
        # the shapes of the sample are those of the inputs, its values are not
        yield f"--sample={spec.goldens}"


def _flags(order: Order) -> list[str]:
    plugins = [word for plugin in order.plugins for word in ("--plugin", plugin)]
    state = []
    if order.spec.state:
        state = ["--state", order.spec.sequences.mode]
    other_flags = [
        *_torch_steps_flag(order),
        *state,
        *plugins,
        *_written_options(order.options),
    ]
    store_flags = ["--store", order.store] if order.store else ["--no-store"]
    return [
        "--serve-as",
        order.serve_as,
        "--layout",
        order.layout,
        *store_flags,
        *other_flags,
    ]


def _torch_steps_flag(order: Order) -> list[str]:
    if order.torch_steps == "auto":
        return []
    return ["--torch-steps", order.torch_steps]


SPELLED = {
    "compute_capabilities": "target",
    "workspace_bytes": "workspace",
    "tactic_sources": "tactic-source",
}
"""Builder options with another name on the command line."""


def _written_options(options: BuildOptions) -> Iterator[str]:
    """The set builder options as command line arguments."""
    # the manifest's
    settings = {
        name: value
        for name, value in options.set().items()
        if name != "profiling_verbosity"
    }
    settings["compute_capabilities"] = [
        f"{major}.{minor}" for major, minor in options.compute_capabilities
    ]
    pools = settings.pop("memory_pools", {})
    for name, value in (
        *settings.items(),
        *(("pool", f"{pool}={limit}") for pool, limit in pools.items()),
    ):
        flag = f"--{SPELLED.get(name, name).replace('_', '-')}"
        elements = value if isinstance(value, list | tuple) else [value]
        for element in elements:
            yield flag if element is True else f"{flag}={element}"


def _input_text(tensor: TensorSpec) -> str:
    """The spec in the format of --input."""
    axes = []
    for axis in tensor.shape:
        text = str(axis)
        if not isinstance(axis, int):
            text = f"{axis}({','.join(map(str, tensor.dims[axis]))})"
        axes.append(text)
    return ":".join(filter(None, [tensor.name, tensor.dtype])) + ":" + "x".join(axes)
