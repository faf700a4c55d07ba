"""Builder options, and the flavors that support each of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from builder.errors import UsageError

Capability = tuple[int, int]


@dataclass(frozen=True)
class BuildOptions:
    """TensorRT's builder settings. None is TensorRT's default.

    `compute_capabilities` such as ((8, 9), ...) are RTX's targets; empty means all that it
    supports. `memory_pools` has bytes by pool (`tactic_dram`); the workspace has its own field.
    `hardware_compatible` is `ampere_plus` or `same_compute_capability`. `timing_cache` is a file,
    by default one for each GPU, driver and TensorRT.
    """

    compute_capabilities: tuple[Capability, ...] = ()
    workspace_bytes: int | None = None
    memory_pools: Mapping[str, int] = field(default_factory=dict)
    optimization_level: int | None = None
    tactic_sources: tuple[str, ...] | None = None
    sparse_weights: bool = False
    refit: bool = False
    strip_plan: bool = False
    version_compatible: bool = False
    hardware_compatible: str | None = None
    profiling_verbosity: str | None = None
    timing_cache: Path | None = None
    error_on_timing_cache_miss: bool = False

    def set(self) -> dict[str, Any]:
        """The fields that differ from their default."""
        default = BuildOptions()
        return {
            option.name: value
            for option in fields(self)
            if (value := getattr(self, option.name)) != getattr(default, option.name)
        }

    def limits(self) -> dict[str, int]:
        """Every memory limit, by the name of the pool."""
        workspace = (
            {} if self.workspace_bytes is None else {"workspace": self.workspace_bytes}
        )
        return {**self.memory_pools, **workspace}

    def over(self, manifest: Mapping[str, Any]) -> BuildOptions:
        """These options where set, else those of the manifest's `build` section. Memory pools are
        merged one by one. Raises UsageError if the workspace has two limits.
        """
        under = from_manifest(manifest)
        pools = {**under.memory_pools, **self.memory_pools}
        over = replace(under, **{**self.set(), "memory_pools": pools})
        if over.workspace_bytes is not None and "workspace" in pools:
            raise UsageError(
                "the workspace has two limits",
                fix="set only workspace_bytes (--workspace)",
            )
        return over


def from_manifest(build: Mapping[str, Any]) -> BuildOptions:
    """The options of a manifest's validated `build` section."""
    fields = dict(build)
    if "compute_capabilities" in fields:
        fields["compute_capabilities"] = parse_capabilities(
            fields["compute_capabilities"]
        )
    if "tactic_sources" in fields:
        fields["tactic_sources"] = tuple(fields["tactic_sources"])
    return BuildOptions(**fields)


def parse_capabilities(texts: Iterable[str]) -> tuple[Capability, ...]:
    """The capabilities, sorted and without duplicates, so that equal targets have equal keys."""
    return tuple(sorted({capability(text) for text in texts}))


def capability(text: str) -> Capability:
    """The capability, such as (8, 9), of `8.9`, `sm_89` or `89`. Raises UsageError."""
    match = re.fullmatch(r"(?:sm_?)?([1-9][0-9]?)\.?([0-9])", text.lower())
    if not match:
        raise UsageError(
            f"{text!r} is not a compute capability", fix="write it as sm_89 or 8.9"
        )
    return int(match[1]), int(match[2])


LACKS = {
    "tensorrt-rtx": {
        "timing_cache": "leave it out: RTX compiles without measuring",
        "error_on_timing_cache_miss": "leave it out: RTX compiles without measuring",
        "tactic_sources": "leave it out: RTX has kernels of its own only",
        "hardware_compatible": "name the GPUs with --target: one RTX plan supports several",
        "version_compatible": (
            "leave it out, and build again for a later version: its package has no lean runtime"
        ),
    },
    "tensorrt": {
        "compute_capabilities": (
            "a plan is for the GPU that it is built on: build on each, then merge"
        )
    },
}
"""For each flavor, the options that it does not support, each with the fix."""

CALLED = {
    "compute_capabilities": "choice of compute capabilities",
    "hardware_compatible": "hardware compatibility",
    "version_compatible": "version compatibility",
    "strip_plan": "stripping of plans",
    "error_on_timing_cache_miss": "error on a miss in the timing cache",
}
"""The name of an option in a sentence, if its own name is not a noun."""

NEEDED = {
    "strip_plan": ("BuilderFlag", "STRIP_PLAN"),
    "refit": ("BuilderFlag", "REFIT"),
    "sparse_weights": ("BuilderFlag", "SPARSE_WEIGHTS"),
    "version_compatible": ("BuilderFlag", "VERSION_COMPATIBLE"),
    "error_on_timing_cache_miss": ("BuilderFlag", "ERROR_ON_TIMING_CACHE_MISS"),
    "hardware_compatible": ("HardwareCompatibilityLevel",),
    "profiling_verbosity": ("ProfilingVerbosity",),
}
"""The member of the library that an option needs. Versions without it lack the option."""

NEEDS_GPU = {"tensorrt-rtx": ("refit", "strip_plan")}
"""For each flavor, the options that can only be built with a GPU. Without one, RTX 1.7 fails with a
CUDA error.
"""


def check_host(options: BuildOptions, flavor: str, has_gpu: bool) -> None:
    """Raise UsageError for an option that cannot be built on a machine without a GPU."""
    if has_gpu:
        return
    for name in NEEDS_GPU.get(flavor, ()):
        if name in options.set():
            raise UsageError(
                f"{flavor} needs a GPU for {name.replace('_', ' ')}, and this machine has none",
                fix="build on a host that has a GPU, or without this option",
            )


def check(
    options: BuildOptions, flavor: str, library: ModuleType, version: str
) -> None:
    """Raise UsageError for an option that the flavor, or this version of it, does not support."""
    for name in options.set():
        if name in LACKS[flavor]:
            raise UsageError(f"{flavor} has no {called(name)}", fix=LACKS[flavor][name])
        if not _has(library, NEEDED.get(name, ())):
            raise UsageError(
                f"{flavor} {version} has no {called(name)}", fix="use a newer TensorRT"
            )
    _check_targets(options.compute_capabilities, library, f"{flavor} {version}")


def called(name: str) -> str:
    """The option as text: `hardware compatibility`, `sparse weights`."""
    return CALLED.get(name, name.replace("_", " "))


def _check_targets(
    targets: tuple[Capability, ...], library: ModuleType, which: str
) -> None:
    """Raise UsageError for a GPU that RTX does not support: data center GPUs from Hopper on."""
    known = sorted(
        int(name[2:])
        for name in getattr(library, "ComputeCapability", object).__dict__
        if re.fullmatch(r"SM\d+", name)
    )
    unknown = [
        f"sm_{major}{minor}"
        for major, minor in targets
        if 10 * major + minor not in known
    ]
    if unknown:
        raise UsageError(
            f"{which} cannot build for {', '.join(unknown)}",
            fix=(
                f"use one of {', '.join(f'sm_{number}' for number in known)}; for others use"
                " --flavor tensorrt on a host that has one"
            ),
        )


def member(library: ModuleType, enumeration: str, name: str, option: str) -> Any:
    """The enumeration's member of this name, in any case. Raises UsageError with the existing
    members.
    """
    members = getattr(library, enumeration)
    if name.upper() not in members.__members__:
        known = ", ".join(key.lower() for key in members.__members__)
        raise UsageError(
            f"{option}: this TensorRT has no {name!r}", fix=f"use one of {known}"
        )
    return members.__members__[name.upper()]


def _has(library: ModuleType, path: tuple[str, ...]) -> bool:
    for step in path:
        if not hasattr(library, step):
            return False
        library = getattr(library, step)
    return True
