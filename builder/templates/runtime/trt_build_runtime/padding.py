"""Joins requests of different lengths: inputs are padded to the longest, outputs are cropped."""

# ruff: noqa: B905 (images up to 23.04 have Python 3.8, whose zip knows no strict)
from __future__ import annotations

from typing import Any

import torch


class Padding:
    """The padding of one model; `serving` is that of plan.json. Without padding, only requests are
    joined whose shapes differ in nothing but the first axis.
    """

    def __init__(self, serving: dict[str, Any]) -> None:
        stated = serving.get("padding") or {"values": {}, "crops": {}}
        inputs = serving["inputs"]
        self.values = [stated["values"].get(declared["name"]) for declared in inputs]
        self.axes: list[dict[int, str]] = [
            _named_axes(declared) if value is not None else {}
            for declared, value in zip(inputs, self.values)
        ]
        crops = [
            stated["crops"].get(declared["name"], {}) for declared in serving["outputs"]
        ]
        self.crops = [
            {int(axis): name for axis, name in crop.items()} for crop in crops
        ]
        self.used = bool(stated["values"])

    def key(self, tensors: list[torch.Tensor]) -> Any:
        """Equal for requests that may be joined: the shapes without the first axis and the padded
        ones. A request with a row that is only padding has the key of requests of the same shape.
        """
        if not self.used or self._has_empty_row(tensors):
            return tuple([tensor.shape[1:] for tensor in tensors])
        shapes = []
        for tensor, axes in zip(tensors, self.axes):
            sizes = [
                size
                for axis, size in enumerate(tensor.shape)
                if axis and axis not in axes
            ]
            shapes.append(tuple(sizes))
        return tuple(shapes)

    def _has_empty_row(self, tensors: list[torch.Tensor]) -> bool:
        """Whether a row of a padded input contains only the padding value. The softmax over masked
        values is spread over the padding as well, so the outputs of such a row change if it is
        padded.
        """
        return any(
            bool((tensor == value).flatten(1).all(1).any())
            for tensor, axes, value in zip(tensors, self.axes, self.values)
            if axes
        )

    def joined(self, requests: list[list[torch.Tensor]]) -> list[torch.Tensor]:
        """The inputs of the batch, each padded to the longest request."""
        return [
            self._column(list(column), axes, value)
            for column, axes, value in zip(zip(*requests), self.axes, self.values)
        ]

    def _column(
        self, tensors: list[torch.Tensor], axes: dict[int, str], value: Any
    ) -> torch.Tensor:
        first = tensors[0]
        if all(tensor.shape[1:] == first.shape[1:] for tensor in tensors):
            return torch.cat(tensors)
        shape = [max(sizes) for sizes in zip(*[tensor.shape for tensor in tensors])]
        shape[0] = sum(tensor.shape[0] for tensor in tensors)
        batch = first.new_full(shape, value)
        row = 0
        for tensor in tensors:
            part = batch[row : row + tensor.shape[0]]
            for axis in axes:
                part = part.narrow(axis, 0, tensor.shape[axis])
            part.copy_(tensor)
            row += tensor.shape[0]
        return batch

    def cropped(
        self, request: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The outputs of one request, whose inputs had these shapes before padding."""
        sizes = {
            name: tensor.shape[axis]
            for tensor, axes in zip(request, self.axes)
            for axis, name in axes.items()
        }
        return [
            self._cropped(output, crops, sizes)
            for output, crops in zip(outputs, self.crops)
        ]

    def _cropped(
        self, output: torch.Tensor, crops: dict[int, str], sizes: dict[str, int]
    ) -> torch.Tensor:
        for axis, name in crops.items():
            output = output.narrow(axis, 0, sizes[name])
        return output


def _named_axes(declared: dict[str, Any]) -> dict[int, str]:
    """The named axes of an input after the batch axis, by position."""
    return {axis: name for axis, name in enumerate(declared["axes"]) if axis and name}
