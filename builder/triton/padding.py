"""Implements padding that the manifest declares: the server batches requests of different lengths.

The runtime pads each input to the longest of the batch, and crops the outputs to the length of each
request. The goldens determine which axis of an output is cropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builder.errors import ParityError
from builder.manifest import ModelSpec
from builder.triton.artifact import Golden

Value = int | float | bool


@dataclass(frozen=True)
class Padding:
    """A padding specification.

    `values`: the value of each padded input by name. `axes`: the named dynamic axes of each padded
    input, by position. `crops`: the cropped axes of each output by position, with the name of the
    input axis that has the same size.
    """

    values: Mapping[str, Value]
    axes: Mapping[str, Mapping[int, str]]
    crops: Mapping[str, Mapping[int, str]]

    def sizes(self, golden: Golden) -> dict[str, int]:
        """The size of each padded axis in a golden, by name."""
        return {
            axis: golden.inputs[name].shape[position]
            for name, axes in self.axes.items()
            for position, axis in axes.items()
        }

    def has_empty_row(self, golden: Golden) -> bool:
        """Whether a row of a padded input contains only the padding value. The runtime does not pad
        requests with such a row.
        """
        for name, array in golden.inputs.items():
            if name not in self.axes:
                continue
            is_padding = (array == self.values[name]).reshape(len(array), -1)
            if is_padding.all(axis=1).any():
                return True
        return False

    def padded(
        self, inputs: Mapping[str, NDArray[Any]], sizes: Mapping[str, int]
    ) -> dict[str, NDArray[Any]]:
        """The inputs with each padded axis extended to `sizes`."""
        return {
            name: self._extended(name, array, sizes) for name, array in inputs.items()
        }

    def _extended(
        self, name: str, array: NDArray[Any], sizes: Mapping[str, int]
    ) -> NDArray[Any]:
        axes = self.axes.get(name, {})
        shape = [
            sizes[axes[position]] if position in axes else size
            for position, size in enumerate(array.shape)
        ]
        if shape == list(array.shape):
            return array
        extended = np.full(shape, self.values[name], dtype=array.dtype)
        extended[tuple(map(slice, array.shape))] = array
        return extended

    def cropped(
        self, outputs: Mapping[str, NDArray[Any]], sizes: Mapping[str, int]
    ) -> dict[str, NDArray[Any]]:
        """Crop the outputs of a padded request to those of a request of `sizes`."""
        return {
            name: self._cropped(name, array, sizes) for name, array in outputs.items()
        }

    def _cropped(
        self, name: str, array: NDArray[Any], sizes: Mapping[str, int]
    ) -> NDArray[Any]:
        crops = self.crops.get(name, {})
        parts = [
            slice(sizes[crops[position]]) if position in crops else slice(None)
            for position in range(array.ndim)
        ]
        return array[tuple(parts)]


def declared(spec: ModelSpec, goldens: Sequence[Golden]) -> Padding:
    """Return the padding of the manifest's `pad`; `spec.inputs` have the names of the goldens.

    Raises ParityError if the goldens do not determine which axes of the outputs are cropped.
    """
    axes = {
        str(tensor.name): {
            position: axis
            for position, axis in enumerate(tensor.shape)
            if position and isinstance(axis, str)
        }
        for tensor in spec.inputs
        if tensor.name in spec.pad
    }
    uncropped = Padding(dict(spec.pad), axes, {})
    sizes = [uncropped.sizes(golden) for golden in goldens]
    names = goldens[0].outputs if goldens else {}
    crops = {
        name: _crops(name, [golden.outputs[name] for golden in goldens], sizes)
        for name in names
    }
    return Padding(
        dict(spec.pad),
        axes,
        {name: cropped for name, cropped in crops.items() if cropped},
    )


def _crops(
    name: str, arrays: Sequence[NDArray[Any]], sizes: Sequence[Mapping[str, int]]
) -> dict[int, str]:
    """The axes of an output that have the size of a padded axis in every golden."""
    if len({array.ndim for array in arrays}) != 1:
        raise ParityError(f"output {name!r} has a varying number of axes")
    cropped = {}
    for position in range(1, arrays[0].ndim):
        lengths = [array.shape[position] for array in arrays]
        if len(set(lengths)) == 1:
            continue
        equal = [
            axis
            for axis in sizes[0]
            if [axis_sizes[axis] for axis_sizes in sizes] == lengths
        ]
        if len(equal) > 1:
            raise ParityError(
                f"axis {position} of output {name!r} has the size of {' and of '.join(equal)} in"
                " every golden",
                fix="add goldens in which these axes differ",
            )
        if equal:
            cropped[position] = equal[0]
    return cropped


def serving(padding: Padding | None) -> dict[str, Any]:
    """The part of plan.json's `serving` for the runtime; empty without padding."""
    if padding is None:
        return {}
    crops = {
        name: {str(position): axis for position, axis in axes.items()}
        for name, axes in padding.crops.items()
    }
    return {"padding": {"values": dict(padding.values), "crops": crops}}
