"""Tensor specs without a manifest: from `image:float32:batch(1,8,32)x3x224x224`, or an .npz."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from builder.dtypes import ENDPOINT_DTYPES
from builder.errors import UsageError
from builder.manifest.arrays import UNNAMED, WRITE_NPZ, read_arrays
from builder.manifest.spec import Profile, Range, TensorSpec
from builder.manifest.suggest import did_you_mean

GRAMMAR = "[NAME:]DTYPE:SHAPE, for example image:float32:batch(1,8,32)x3x224x224"
_AXIS = re.compile(r"(?P<size>\d+)|(?P<name>[A-Za-z_]\w*)\((?P<range>[^)]*)\)")
_NUMBERED = re.compile(r"arr_\d+")  # numpy.savez's name of an array without a name


def parse_input(text: str) -> TensorSpec:
    """Parse `[name:]dtype:shape`.

    Sizes and `axis(min,opt,max)` are joined by x. An empty shape is a scalar. Raises UsageError
    that names the invalid part.
    """
    parts = [part.strip() for part in text.split(":")]
    if len(parts) not in (2, 3):
        raise UsageError(f"--input {text!r} has the wrong form", fix=f"write {GRAMMAR}")
    *name, dtype, shape = parts
    dtype = dtype.removeprefix("torch.")
    if dtype not in ENDPOINT_DTYPES:
        raise UsageError(
            f"--input {text!r}: unknown dtype {dtype!r}",
            fix=did_you_mean(dtype, ENDPOINT_DTYPES),
        )
    axes, dims = _shape(text, shape)
    return TensorSpec(dtype, axes, dims=dims, name=(name[0] or None) if name else None)


def _shape(text: str, shape: str) -> tuple[tuple[int | str, ...], dict[str, Range]]:
    axes: list[int | str] = []
    dims: dict[str, Range] = {}
    position = 0
    while position < len(shape):
        match = _AXIS.match(shape, position)
        if match is None:
            hint = "write a dynamic axis as name(min,opt,max), each time it occurs"
            raise UsageError(
                f"--input {text!r}: cannot read the shape from {shape[position:]!r}",
                fix=hint,
            )
        axes.append(int(match["size"]) if match["size"] else match["name"])
        if match["name"]:
            dims[match["name"]] = _range(text, match["name"], match["range"])
        position = _after_separator(text, shape, match.end())
    return tuple(axes), dims


def _after_separator(text: str, shape: str, position: int) -> int:
    if position == len(shape):
        return position
    if shape[position] != "x" or position + 1 == len(shape):
        raise UsageError(
            f"--input {text!r}: join sizes by x, not {shape[position:]!r}",
            fix=f"write {GRAMMAR}",
        )
    return position + 1


def _range(text: str, axis: str, inner: str) -> Range:
    numbers = [number.strip() for number in inner.split(",")]
    if len(numbers) != 3 or not all(number.isdigit() for number in numbers):
        raise UsageError(
            f"--input {text!r}: {axis}({inner}) does not have the form {axis}(min,opt,max)"
        )
    low, usual, high = map(int, numbers)
    return low, usual, high


def specs_from_sample(path: Path) -> tuple[TensorSpec, ...]:
    """One static spec for each array of an .npz, in order, with the array's name.

    `arr_0` and the like get no name. Raises UsageError if the file is not an .npz of plain arrays
    or has an unsupported dtype.
    """
    try:
        arrays = read_arrays(path)
        if UNNAMED in arrays:
            raise ValueError("it holds a single array without a name")
    except ValueError as error:
        message = f"{path} cannot be read as an .npz of plain arrays: {error}"
        raise UsageError(message, fix=WRITE_NPZ) from error
    return tuple(
        TensorSpec(
            str(array.dtype),
            tuple(array.shape),
            name=None if _NUMBERED.fullmatch(key) else key,
        )
        for key, array in arrays.items()
    )


def merged_profile(inputs: Sequence[TensorSpec]) -> Profile:
    """One profile with every axis of every spec.

    Raises UsageError if an axis has different ranges in two specs.
    """
    merged: dict[str, Range] = {}
    for spec in inputs:
        for axis, sizes in spec.dims.items():
            if merged.setdefault(axis, sizes) != sizes:
                raise UsageError(
                    f"axis {axis!r} has two different ranges: {merged[axis]} and {sizes}"
                )
    return merged
