"""Which of the GPUs that plans are wanted for this host builds for, and how the others get
theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from builder.engine import BuildOptions, gpu
from builder.engine.options import Capability
from builder.errors import UsageError

AMPERE = (8, 0)
"""The first compute capability of `hardware_compatible: ampere_plus`."""


def here(options: BuildOptions, flavour: str) -> BuildOptions:
    """The options as this host builds with them: RTX for all targets at once, TensorRT for the GPU
    that it has.

    Raises UsageError where that GPU is none of the targets.
    """
    device, targets = gpu.current(), options.compute_capabilities
    if flavour == "tensorrt-rtx" or not targets or device is None:
        return options
    if not any(_serves(options, device.capability, target) for target in targets):
        others = [
            f"CUDA_VISIBLE_DEVICES={d.uuid}" for d in gpu.devices() if d.capability in targets
        ]
        raise UsageError(
            f"this host's {device.name} is {_name(device.capability)}, which is no --target",
            fix=others[0] if others else "build on a host that has one, then `trt-build merge`",
        )
    return replace(options, compute_capabilities=())


def missing(
    options: BuildOptions, flavour: str, models: Path | str, out: Path | str
) -> Iterator[str]:
    """For each target that no plan of this host serves, how it gets one."""
    device = gpu.current()
    if flavour == "tensorrt-rtx" or device is None:
        return
    for target in options.compute_capabilities:
        if not _serves(options, device.capability, target):
            name = _name(target)
            yield (
                f"no plan for {name} yet: on a host with such a GPU `trt-build repo {models} --out"
                f" {name} --target {name}`, then `trt-build merge {out} {name} --out MERGED`"
            )


def check_served(serve_as: str, flavour: str) -> None:
    """Raise UsageError where Triton's TensorRT backend is to load a plan that it cannot."""
    if serve_as == "tensorrt_plan" and flavour == "tensorrt-rtx":
        raise UsageError(
            "Triton's TensorRT backend loads no plan of TensorRT for RTX",
            fix=(
                "leave --serve-as out, and the Python runtime runs it, or build with --flavour"
                " tensorrt on a GPU host"
            ),
        )


def _serves(options: BuildOptions, built: Capability, target: Capability) -> bool:
    """Whether a plan that was built on the one runs on the other."""
    return built == target or (
        options.hardware_compatible == "ampere_plus" and target >= AMPERE <= built
    )


def _name(capability: Capability) -> str:
    return f"sm_{capability[0]}{capability[1]}"
