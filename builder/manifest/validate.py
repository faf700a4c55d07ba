"""Validates a tensor's dtype, shape and ranges, for manifests and the command line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from builder.dtypes import ENDPOINT_DTYPES
from builder.errors import UsageError
from builder.manifest.suggest import did_you_mean

if TYPE_CHECKING:
    from builder.manifest.spec import TensorSpec


def check_tensor_spec(spec: TensorSpec) -> None:
    """Raise UsageError with every reason why the spec's dtype, shape or ranges are invalid."""
    mistakes = list(tensor_mistakes(spec))
    if mistakes:
        name = f"input {spec.name!r}" if spec.name else "tensor spec"
        raise UsageError(f"{name}: " + "; ".join(mistakes))


def tensor_mistakes(spec: TensorSpec) -> Iterator[str]:
    """Each reason why the spec is invalid."""
    if spec.dtype not in ENDPOINT_DTYPES:
        yield f"unknown dtype {spec.dtype!r} ({did_you_mean(spec.dtype, ENDPOINT_DTYPES)})"
    for axis in spec.shape:
        if isinstance(axis, str) and axis not in spec.dims:
            hint = (
                did_you_mean(axis, spec.dims, otherwise_list=False)
                or "add its (min, opt, max) to dims"
            )
            yield f"axis {axis!r} has no range ({hint})"
        elif not isinstance(axis, str) and (
            isinstance(axis, bool) or not isinstance(axis, int) or axis < 0
        ):
            yield f"size {axis!r} is neither a whole number (0 or more) nor an axis name"
    for axis, sizes in spec.dims.items():
        yield from (f"axis {axis!r}: {mistake}" for mistake in range_mistakes(sizes))


def range_mistakes(sizes: Sequence[int]) -> Iterator[str]:
    """Each reason why (min, opt, max) is not 0 <= min <= opt <= max."""
    are_whole = all(
        isinstance(size, int) and not isinstance(size, bool) for size in sizes
    )
    if len(sizes) != 3 or not are_whole:
        yield f"a range is three whole numbers (min, opt, max), not {sizes!r}"
        return
    names = ("min", "opt", "max")
    if sizes[0] < 0:
        yield f"min {sizes[0]} is below 0"
    for low, high in ((0, 1), (1, 2)):
        if sizes[low] > sizes[high]:
            yield f"{names[low]} {sizes[low]} is greater than {names[high]} {sizes[high]}"
