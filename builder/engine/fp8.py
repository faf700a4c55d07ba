"""The TensorRT versions and GPUs that support FP8."""

from __future__ import annotations

from collections.abc import Sequence

from builder.engine import capabilities, flavor, gpu
from builder.engine.flavor import trt
from builder.errors import UsageError

SINCE = (8, 9)
"""Ada. Source: TensorRT's support matrix, "Hardware and Precision"; RTX's has the same value."""


def missing() -> str | None:
    """The reason why this TensorRT or the target GPU does not support FP8; None if both do."""
    if not capabilities.current().has_fp8:
        return (
            f"TensorRT {trt.__version__} quantizes to int8 only: FP8 needs"
            " TensorRT 10, 11 or RTX"
        )
    device = None
    if flavor.name() == "tensorrt":
        device = gpu.current()
    return _too_old([device.capability]) if device else None


def check_targets(precision: str, targets: Sequence[tuple[int, int]]) -> None:
    """Raise UsageError if an FP8 plan for RTX has target GPUs without FP8."""
    reason = _too_old(targets) if precision == "fp8" else None
    if reason:
        raise UsageError(
            f"precision 'fp8': {reason}",
            fix="use --target sm_89 or newer, or precision: int8",
        )


def _too_old(capabilities: Sequence[tuple[int, int]]) -> str | None:
    old = [
        f"{major}.{minor}" for major, minor in capabilities if (major, minor) < SINCE
    ]
    if old:
        return (
            f"GPUs of compute capability {', '.join(old)} have no FP8, which requires"
            " 8.9 or newer"
        )
    return None
