"""The user's inputs: an .npz whose keys are input names, or "<n>/<input name>" for several sets.

A set without the state of a model with state is a sequence: each array has an additional first axis
for the requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from builder.errors import UsageError
from builder.manifest import ModelSpec, Profile, TensorSpec, read_sets
from builder.parity import omitted
from builder.triton import dtypes

Arrays = Mapping[str, NDArray[Any]]


def user_inputs(
    spec: ModelSpec,
) -> Iterator[tuple[str, tuple[str, ...], list[torch.Tensor]]]:
    """("user-<n>", omitted optional inputs, tensors in the spec's order) for each set in
    `spec.goldens`. Omitted inputs have their defaults.

    Raises UsageError for a file that is not an .npz, a missing or unknown input, an incorrect
    dtype, or a shape outside every profile.
    """
    if spec.goldens is None:
        return
    for number, arrays in sorted(_sets(spec).items()):
        if _is_sequence(spec, arrays):
            continue
        specs = [
            tensor_spec
            for tensor_spec in spec.inputs
            if tensor_spec.name in arrays or tensor_spec.name not in spec.defaults
        ]
        _check(spec, specs, arrays)
        tensors = {
            name: torch.from_numpy(np.array(array)) for name, array in arrays.items()
        }
        sizes = omitted.sizes_of(specs, {name: t.shape for name, t in tensors.items()})
        left_out = {}
        for tensor_spec in spec.inputs:
            name = tensor_spec.name or ""
            if name not in tensors:
                default = spec.defaults[name]
                left_out[name] = omitted.filled(tensor_spec, default, sizes)
        all_tensors = {**tensors, **left_out}
        yield (
            f"user-{number}",
            tuple(left_out),
            [all_tensors[t.name or ""] for t in spec.inputs],
        )


def _requests(spec: ModelSpec, arrays: Arrays) -> list[Arrays]:
    """The arrays of each request of a sequence. Raises UsageError if their numbers differ."""
    counts = {array.shape[:1] for array in arrays.values()}
    if len(counts) != 1 or counts <= {(), (0,)}:
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        raise UsageError(
            "the arrays of a sequence must have the same number of requests as first axis: "
            f"{shapes}",
            where=str(spec.goldens),
        )
    return [
        {name: array[at] for name, array in arrays.items()}
        for at in range(*counts.pop())
    ]


def user_sequences(
    spec: ModelSpec,
) -> Iterator[tuple[str, list[dict[str, torch.Tensor]]]]:
    """("user-<n>", the requests, each by input name) for each set that is a sequence. Raises
    UsageError as above.
    """
    if not spec.goldens:
        return
    for number, arrays in sorted(_sets(spec).items()):
        if not _is_sequence(spec, arrays):
            continue
        requests = _requests(spec, arrays)
        for request in requests:
            _check(spec, spec.stateless_inputs, request)
        yield (
            f"user-{number}",
            [
                {
                    name: torch.from_numpy(np.array(array))
                    for name, array in request.items()
                }
                for request in requests
            ],
        )


def _is_sequence(spec: ModelSpec, arrays: Arrays) -> bool:
    return bool(spec.state) and not any(state.input in arrays for state in spec.state)


def _sets(spec: ModelSpec) -> dict[int, dict[str, NDArray[Any]]]:
    return read_sets(Path(str(spec.goldens)))


def _check(spec: ModelSpec, tensors: Sequence[TensorSpec], arrays: Arrays) -> None:
    names = [tensor.name or "" for tensor in tensors]
    wrong = sorted(set(names) ^ set(arrays))
    if wrong:
        raise UsageError(
            f"the arrays are {sorted(arrays)}, the inputs {names}",
            where=str(spec.goldens),
            fix="save one array for each input, with its name",
        )
    for tensor in tensors:
        _check_one(spec, tensor, arrays[tensor.name or ""])
    if not any(_inside(tensors, profile, arrays) for profile in spec.profiles or ({},)):
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        raise UsageError(
            f"the shapes {shapes} are in no profile of the model",
            where=str(spec.goldens),
            fix="use arrays of other shapes, or widen the ranges in the manifest",
        )


def _check_one(spec: ModelSpec, tensor: TensorSpec, array: NDArray[Any]) -> None:
    if array.dtype != dtypes.by_name(tensor.dtype).numpy:
        raise UsageError(
            f"array {tensor.name!r} is {array.dtype}, the input {tensor.dtype}",
            where=str(spec.goldens),
        )


def _inside(tensors: Sequence[TensorSpec], profile: Profile, arrays: Arrays) -> bool:
    """Whether all shapes are in the profile, with one size for each axis name."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        shape = arrays[tensor.name or ""].shape
        if len(shape) != len(tensor.shape):
            return False
        spans = {**tensor.dims, **profile}
        for axis, size in zip(tensor.shape, shape, strict=True):
            low, _, high = (axis, axis, axis) if isinstance(axis, int) else spans[axis]
            if not low <= size <= high or sizes.setdefault(str(axis), size) != size:
                return False
    return True
