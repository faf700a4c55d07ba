"""Finds the input of a request that made torch fail: an error of the client, not of the model."""

# ruff: noqa: B905 (images up to 23.04 have Python 3.8, whose zip knows no strict)
from __future__ import annotations

import re
from typing import Any

import torch

from .errors import InvalidRequest
from .recent import Recent

SHAPES = 256
_INDEX = re.compile(
    r"index out of range in self|index -?\d+ is out of bounds|index out of bounds"
    r"|index -?\d+ is out of range|out of bounds for dimension"
)
_SIZE = re.compile(r"index (-?\d+) is out of (?:bounds|range).* size (\d+)")
_SAME_VALUES = (
    "aten::to",
    "aten::view",
    "aten::reshape",
    "aten::flatten",
    "aten::unsqueeze",
)
"""Operators that return the values of their first input."""


class Axes:
    """The named axes that several inputs share. Their sizes must agree in a request."""

    def __init__(self, inputs: list[dict[str, Any]]) -> None:
        self.inputs = inputs
        positions: dict[str, list[tuple[int, int]]] = {}
        for index, declared in enumerate(inputs):
            for axis, name in enumerate(declared.get("axes") or ()):
                if name:
                    positions.setdefault(name, []).append((index, axis))
        self.shared = {name: axes for name, axes in positions.items() if len(axes) > 1}
        self.known = Recent(SHAPES)

    def check(self, tensors: list[torch.Tensor]) -> None:
        """Raise InvalidRequest, with the inputs and the axis, if sizes differ."""
        if not self.shared:
            return
        shapes = tuple([tensor.shape for tensor in tensors])
        if self.known.get(shapes) is None:
            for name, positions in self.shared.items():
                self._check(
                    name,
                    [
                        (index, axis)
                        for index, axis in positions
                        if axis < len(shapes[index])
                    ],
                    shapes,
                )
            self.known.put(shapes, value=True)

    def _check(self, name: str, positions: list[tuple[int, int]], shapes: Any) -> None:
        if len({shapes[index][axis] for index, axis in positions}) > 1:
            sizes = ", ".join(
                f"input {self.inputs[index]['name']!r} has {shapes[index][axis]} at axis {axis}"
                for index, axis in positions
            )
            raise InvalidRequest(
                f"axis {name!r} must have one size in all inputs: {sizes}"
            )


def blamed(
    error: Exception,
    inputs: list[dict[str, Any]],
    tensors: list[torch.Tensor],
    limits: Any,
) -> Exception:
    """InvalidRequest with the input that has an index out of range. For other errors, the error
    without its trace, which shows the model's code and nothing of the request. `limits` has the
    number of rows of the indexed table by position of the input.
    """
    text = _last_line(error)
    if not _INDEX.search(text):
        return error if text == str(error) else type(error)(text)
    size_match = _SIZE.search(text)
    stated = int(size_match.group(2)) if size_match else None
    integers = _integers(inputs, tensors)
    if outside := _outside(integers, limits, stated):
        ranges = (
            f"input {name!r} has values from {int(tensor.min())} to {int(tensor.max())}, and"
            f" the model takes 0 to {size - 1}"
            for name, tensor, size in outside
        )
        return InvalidRequest("; ".join(ranges))
    if not integers:
        return type(error)(text)
    spans = ", ".join(
        f"{name!r} has {int(tensor.min())} to {int(tensor.max())}"
        for _, name, tensor in integers
    )
    return InvalidRequest(f"an index is out of range, in one of the inputs: {spans}")


def _integers(
    inputs: list[dict[str, Any]], tensors: list[torch.Tensor]
) -> list[tuple[int, str, torch.Tensor]]:
    """Position, name and tensor of each input that may have indices."""
    return [
        (position, declared["name"], tensor)
        for position, (declared, tensor) in enumerate(zip(inputs, tensors))
        if tensor.numel()
        and not tensor.is_floating_point()
        and tensor.dtype != torch.bool
    ]


def _outside(
    integers: list[tuple[int, str, torch.Tensor]], limits: Any, stated: int | None
) -> list[tuple[str, torch.Tensor, int]]:
    """The inputs with indices beyond their table, and the table's size: from `limits`, else the
    size that the error states.
    """
    beyond = [
        (name, tensor, limits[position])
        for position, name, tensor in integers
        if position in limits and not _within(tensor, 0, limits[position])
    ]
    if beyond or stated is None:
        return beyond
    return [
        (name, tensor, stated)
        for _, name, tensor in integers
        if not _within(tensor, -stated, stated)
    ]


def table_sizes(module: Any) -> dict[int, int]:
    """By position of a graph's input: the rows of the smallest embedding that it indexes."""
    inputs = [value.debugName() for value in module.graph.inputs()][1:]
    rows: dict[int, int] = {}
    for node in module.graph.nodes():
        if node.kind() == "aten::embedding":
            table = node.inputsAt(0)
            indices = node.inputsAt(1)
            name = _origin(indices).debugName()
            weight = _tensor(table, module)
            if name in inputs and isinstance(weight, torch.Tensor):
                position = inputs.index(name)
                rows[position] = min(rows.get(position, len(weight)), len(weight))
    return rows


def _origin(value: Any) -> Any:
    while value.node().kind() in _SAME_VALUES:
        value = value.node().inputsAt(0)
    return value


def _tensor(value: Any, module: Any) -> Any:
    node = value.node()
    if node.kind() == "prim::Constant":
        return value.toIValue()
    if node.kind() == "prim::GetAttr":
        owner = _tensor(node.inputsAt(0), module)
        return getattr(owner, node.s("name"), None)
    return module if node.kind() == "prim::Param" else None


def _within(tensor: torch.Tensor, low: int, size: int) -> bool:
    return bool(low <= int(tensor.min()) and int(tensor.max()) < size)


def _last_line(error: Exception) -> str:
    """The message of an error from the TorchScript interpreter, without its trace."""
    text = str(error)
    if "Traceback of TorchScript" not in text:
        return text
    lines = [
        line
        for line in text.strip().splitlines()
        if re.match(r"\w*(Error|Exception): ", line)
    ]
    if lines:
        return lines[-1].split(": ", 1)[1]
    return text
