"""Load the calibration batches that the manifest names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import parity, precisions, triton
from builder.errors import UsageError
from builder.manifest import (
    UNNAMED,
    Calibration,
    ModelSpec,
    TensorSpec,
    manifest_location,
    read_arrays,
    read_sets,
    shared_first_axis,
)

if TYPE_CHECKING:
    import torch

    from builder.triton import Golden

Arrays = Mapping[str, Any]

EVERY = 5
"""One row of so many is held out of the ranges, for goldens."""
LEAST_ROWS = 2 * EVERY
"""The fewest rows of which some are held out."""


def batches(
    spec: ModelSpec, calibration: Calibration, goldens: Sequence[Golden] | None
) -> list[list[torch.Tensor]]:
    """Tensors in the order and dtypes of the spec's inputs, with at most the optimum size of a
    shared batch axis. With `goldens` None only those of files.

    Raises UsageError, with the line of the manifest, for a file that does not have the model's
    inputs.
    """
    every = calibration_sets(spec, calibration, goldens)
    return [batch for tensors in every for batch in _partitioned(spec, tensors)]


def of_ranges(
    spec: ModelSpec, calibration: Calibration, goldens: Sequence[Golden]
) -> list[list[torch.Tensor]]:
    """The `batches` without the held-out rows of files. Raises UsageError like `batches`."""
    sets = [*_divided_files(spec, calibration)[0]]
    if "goldens" in calibration.data:
        only_goldens = replace(calibration, data=("goldens",))
        sets += calibration_sets(spec, only_goldens, goldens)
    return [batch for tensors in sets for batch in _partitioned(spec, tensors)]


def of_goldens(spec: ModelSpec) -> list[list[torch.Tensor]]:
    """The sets of tensors that goldens are drawn from: the held-out rows of the calibration files,
    or all rows if none are held out. Empty without files or 8 bits. Raises UsageError like
    `batches`.
    """
    if spec.calibration is None or spec.precision not in precisions.QUANTIZED:
        return []
    seen, held_out = _divided_files(spec, spec.calibration)
    return held_out or seen


def _divided_files(
    spec: ModelSpec, calibration: Calibration
) -> tuple[list[list[torch.Tensor]], list[list[torch.Tensor]]]:
    """(the sets of the files without every fifth row, these rows). Without a shared batch axis a
    set of arrays is one row. The second part is empty if there are fewer than ten rows.
    """
    every = calibration_sets(spec, calibration, None)
    rows = [_count(spec, tensors) for tensors in every]
    if sum(rows) < LEAST_ROWS:
        return every, []
    parts: tuple[list[list[torch.Tensor]], ...] = ([], [])
    first = 0
    for tensors, count in zip(every, rows, strict=True):
        for part, some in zip(parts, _divided(spec, tensors, first), strict=True):
            part += [some] if some else []
        first += count
    return parts[0], parts[1]


def _count(spec: ModelSpec, tensors: Sequence[torch.Tensor]) -> int:
    """The number of rows: 1 without a shared batch axis."""
    return tensors[0].shape[0] if shared_first_axis(spec.inputs) else 1


def _divided(
    spec: ModelSpec, tensors: list[torch.Tensor], first: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """(the rows for ranges, the held-out rows) of one set, whose first row has the number `first`.
    A part without rows is an empty list. A set is not divided if a part would have fewer rows than
    the axis allows.
    """
    import torch

    axis = shared_first_axis(spec.inputs)
    if axis is None:
        return ([], tensors) if first % EVERY == EVERY - 1 else (tensors, [])
    numbers = torch.arange(first, first + tensors[0].shape[0])
    is_held = numbers % EVERY == EVERY - 1
    counts = (int((~is_held).sum()), int(is_held.sum()))
    least = spec.inputs[0].dims[axis][0]
    if any(0 < count < least for count in counts):
        return tensors, []
    seen, held = (
        [tensor[rows] for tensor in tensors] if count else []
        for rows, count in zip((~is_held, is_held), counts, strict=True)
    )
    return seen, held


def calibration_sets(
    spec: ModelSpec, calibration: Calibration, goldens: Sequence[Golden] | None
) -> list[list[torch.Tensor]]:
    """The tensors of each set of arrays, in the order and dtypes of the spec's inputs. Raises
    UsageError like `batches`.
    """
    collected: list[list[torch.Tensor]] = []
    for index, item in enumerate(calibration.data):
        where = manifest_location(spec, "calibration", "data", index)
        if isinstance(item, Path):
            read = list(_sets(spec, item, where))
        elif goldens is None:
            continue
        else:
            read = _data_of_goldens(goldens)
        if not read:
            raise UsageError(f"{item} has no arrays for calibration", where=where)
        for arrays in read:
            tensors = [_tensor(tensor, arrays, where) for tensor in spec.inputs]
            _check_axes(spec, tensors, where)
            collected.append(tensors)
    return collected


def data_of_files(spec: ModelSpec) -> tuple[Golden, ...]:
    """The inputs in the manifest's calibration files, as goldens without outputs. Raises
    UsageError like `batches`.
    """
    if spec.calibration is None:
        return ()
    names = [str(tensor.name) for tensor in spec.inputs]
    return tuple(
        triton.Golden(
            f"calibration-{number}",
            dict(zip(names, map(parity.to_numpy, batch), strict=True)),
            {},
        )
        for number, batch in enumerate(batches(spec, spec.calibration, None))
    )


def beyond_data(spec: ModelSpec, golden: Golden) -> str:
    """The first float input of the golden that is more than a quarter larger than in every row of
    the files that ranges come from, and both magnitudes. Empty if there is none, or if goldens
    calibrate, too.
    """
    if spec.calibration is None or "goldens" in spec.calibration.data:
        return ""
    sets, _ = _divided_files(spec, spec.calibration)
    for index, tensor in enumerate(spec.inputs):
        name = str(tensor.name)
        if "float" not in tensor.dtype or name not in golden.inputs:
            continue
        reach = _largest(golden.inputs[name])
        usual = max(float(tensors[index].abs().max()) for tensors in sets)
        if reach > 1.25 * usual:
            return (
                f"input {name!r} reaches {reach:.3g} in this golden and {usual:.3g} in the"
                " calibration data, and larger values saturate"
            )
    return ""


def _largest(array: Any) -> float:
    """The largest magnitude of an array."""
    import numpy as np

    return float(np.abs(array.astype(np.float64)).max(initial=0.0))


def _sets(spec: ModelSpec, path: Path, where: str) -> Iterator[Arrays]:
    if path.suffix == ".npz":
        yield from read_sets(path).values()
        return
    try:
        read = read_arrays(path)
    except ValueError as error:
        raise UsageError(
            f"{path} is not an .npy of plain numbers: {error}", where=where
        ) from error
    if UNNAMED not in read:
        raise UsageError(
            f"{path} is named .npy, and its content is an .npz",
            where=where,
            fix="rename it to .npz",
        )
    yield {str(spec.inputs[0].name): read[UNNAMED]}


def _data_of_goldens(goldens: Sequence[Golden]) -> list[Arrays]:
    """The inputs of goldens, without empty ones and those that were generated to reach a branch or
    bound: their unusual values would widen the ranges.
    """
    return [
        golden.inputs
        for golden in goldens
        if "-reach" not in golden.name
        and all(array.size for array in golden.inputs.values())
    ]


def _fits(sizes: Sequence[int], shape: Sequence[int | str]) -> bool:
    """Whether the sizes are those of a shape. A name is any size."""
    pairs = zip(sizes, shape, strict=False)
    same = all(isinstance(axis, str) or axis == size for size, axis in pairs)
    return len(sizes) == len(shape) and same


def _tensor(spec: TensorSpec, arrays: Arrays, where: str) -> torch.Tensor:
    import torch

    name = str(spec.name)
    if name not in arrays:
        raise UsageError(
            f"no array is called {name!r}; there are {sorted(arrays)}", where=where
        )
    try:
        tensor = parity.to_torch(arrays[name])
        dtype = getattr(torch, spec.dtype)
    except (TypeError, ValueError) as error:
        array_dtype = arrays[name].dtype
        message = f"array {name!r} is {array_dtype}, the input {spec.dtype}"
        raise UsageError(message, where=where) from error
    both_floating = tensor.is_floating_point() and dtype.is_floating_point
    if tensor.dtype != dtype and not both_floating:
        message = f"array {name!r} is {tensor.dtype}, the input {spec.dtype}"
        raise UsageError(message, where=where)
    if not _fits(tensor.shape, spec.shape):
        raise UsageError(
            f"array {name!r} has shape {list(tensor.shape)}, the input {list(spec.shape)}",
            where=where,
        )
    if not tensor.numel() or bool(tensor.isnan().any()):
        reason = "has NaN values" if tensor.numel() else "is empty"
        raise UsageError(f"array {name!r} {reason}: it has no range", where=where)
    return tensor.to(dtype)


def _check_axes(spec: ModelSpec, tensors: Sequence[torch.Tensor], where: str) -> None:
    """Raise UsageError if a named axis does not have the same size in every array."""
    sizes: dict[str, tuple[int, str | None]] = {}
    for tensor_spec, tensor in zip(spec.inputs, tensors, strict=True):
        for axis, size in zip(tensor_spec.shape, tensor.shape, strict=True):
            first, name = sizes.setdefault(str(axis), (size, tensor_spec.name))
            if size != first:
                problem = (
                    f"axis {axis!r} has size {first} in array {name!r} and"
                    f" {size} in {tensor_spec.name!r}"
                )
                raise UsageError(
                    problem,
                    where=where,
                    fix="give all arrays of one set the same number of rows",
                )


def _partitioned(
    spec: ModelSpec, tensors: Sequence[torch.Tensor]
) -> list[list[torch.Tensor]]:
    """The batch split to the size that the engine is tuned for. The activations for a whole file
    may not fit in memory.
    """
    import torch

    axis = shared_first_axis(spec.inputs)
    if axis is None:
        return [list(tensors)]
    usual = max(spec.inputs[0].dims[axis][1], 1)
    parts = [torch.split(tensor, usual) for tensor in tensors]
    return [list(batch) for batch in zip(*parts, strict=True)]
