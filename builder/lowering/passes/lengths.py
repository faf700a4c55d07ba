"""The lengths of the axes of tensors, as products of integers and symbolic sizes of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from builder.analysis import Facts, weight_shape
from builder.graph_types import Node, Value
from builder.lowering import ir
from builder.lowering.passes.amounts import (
    ONE,
    Amount,
    CommonFactor,
    Names,
    Shape,
    alias,
    amount,
    common,
    filled,
    named,
    of_item,
    of_size,
    product,
    renamed,
)
from builder.lowering.passes.moves import MOVES, axis_at, moved
from builder.lowering.passes.widths import width


class Lengths:
    """The shape of each value, as far as it is known. Query and update it in program order."""

    def __init__(self, facts: Facts, input_shapes: Mapping[int, Sequence[Any]]) -> None:
        """`input_shapes` maps input values to shapes. An axis that is not a number is unknown."""
        self._facts = facts
        self._input_shapes = input_shapes
        self._shapes = dict[int, Shape | None]()
        self.guesses: dict[Any, Amount] = {}
        """For a size from broadcasting: the size of one operand. It differs only if that one is 1.
        """

    def learn(self, node: Node) -> None:
        """Record the shapes of a node's outputs."""
        self._facts.learn(node)
        rule = _RULES.get(node.kind())
        if rule is not None and node.outputsSize() == 1 and not ir.in_fallback(node):
            shape = rule(self, node)
            if shape is not None:
                self._shapes[node.output().unique()] = shape

    def shape(self, value: Value) -> Shape | None:
        """The shape of a value; None if its rank is not known."""
        if value.unique() not in self._shapes:
            self._shapes[value.unique()] = self._new_shape(value)
        return self._shapes[value.unique()]

    def _new_shape(self, value: Value) -> Shape | None:
        """A new symbolic size or the known number for each axis."""
        rank = self._facts.rank(value)
        lengths = (
            weight_shape(value)
            or self._input_shapes.get(value.unique())
            or (None,) * (rank or 0)
        )
        if rank is None or len(lengths) != rank:
            return None
        shape = []
        for axis, length in enumerate(lengths):
            if isinstance(length, int) and length >= 0:
                shape.append(amount(length))
            else:
                shape.append(named(value, axis))
        return shape

    def of(self, item: Value | int) -> Amount | None:
        """The product for a size in a list; None for a size to infer."""
        return of_item(item, self._size)

    def _size(self, node: Node) -> Amount | None:
        """The product for a size that is read from a tensor."""
        if node.kind() != "aten::size" or node.inputsSize() != 2:
            return None
        shape = self.shape(node.inputsAt(0))
        axis = None
        if shape is not None:
            axis = axis_at(node, 1, len(shape))
        if shape is None or axis is None:
            return None
        return shape[axis]

    def common_factors(
        self, shape: Shape, requested: Sequence[Amount | None]
    ) -> list[CommonFactor] | None:
        """The common factors of a tensor's axes and of the axes after a reshape; None if not known.
        A requested size of None is inferred.
        """
        axes = filled(shape, requested)
        if axes is None:
            return None
        whole = product(axes)
        aliases = alias(product(shape), whole)
        factors = common(
            [renamed(size, aliases) for size in shape],
            [renamed(size, aliases) for size in axes],
        )
        return factors or common(
            [self._guessed(size, whole.names) for size in shape], axes
        )

    def _guessed(self, size: Amount, requested: Names, steps: int = 12) -> Amount:
        """The requested shape with guesses for unnamed sizes. The guesses are correct for every
        valid input: a reshape keeps the number of elements, so that a size whose guess is 1 cannot
        be larger.
        """
        factors = [amount(size.number)]
        for name in size.names:
            guess = None
            if steps and name not in requested:
                guess = self.guesses.get(name)
            if guess is None:
                factors.append(of_size(*name))
            else:
                factors.append(self._guessed(guess, requested, steps - 1))
        return product(factors)


def _same(lengths: Lengths, node: Node) -> Shape | None:
    return lengths.shape(node.inputsAt(0))


def _layer(lengths: Lengths, node: Node) -> Shape | None:
    shape = lengths.shape(node.inputsAt(0))
    last = width(node.output())
    if shape is None or last is None:
        return None
    return [*shape[:-1], amount(last)]


def _moved(lengths: Lengths, node: Node) -> Shape | None:
    shape = lengths.shape(node.inputsAt(0))
    if shape is None:
        return None
    return moved(node, shape)


def _embedded(lengths: Lengths, node: Node) -> Shape | None:
    """The shape of an embedding: the axes of the indices, then the width of the table."""
    table = lengths.shape(node.inputsAt(0))
    indices = lengths.shape(node.inputsAt(1))
    if table is None or indices is None:
        return None
    return [*indices, table[-1]]


def _convolved(lengths: Lengths, node: Node) -> Shape | None:
    """The shape of a convolution: the batch of its input, and new sizes for the other axes."""
    shape = lengths.shape(node.inputsAt(0))
    kernel = weight_shape(node.inputsAt(1))
    if shape is None or kernel is None or len(shape) != len(kernel):
        return None
    others = [named(node.output(), axis) for axis in range(1, len(shape))]
    return [shape[0], *others]


def _as_other(lengths: Lengths, node: Node) -> Shape | None:
    return lengths.shape(node.inputsAt(1))


def _reshaped(lengths: Lengths, node: Node) -> Shape | None:
    shape = lengths.shape(node.inputsAt(0))
    items = ir.list_items(node.inputsAt(1))
    if items is None:
        return None
    requested = [lengths.of(item) for item in items]
    axes: Sequence[Amount | None] = requested
    if shape is not None:
        axes = filled(shape, requested) or requested
    return [size or named(node.output(), axis) for axis, size in enumerate(axes)]


def _unflattened(lengths: Lengths, node: Node) -> Shape | None:
    shape = lengths.shape(node.inputsAt(0))
    items = ir.list_items(node.inputsAt(2))
    axis = None
    if shape is not None:
        axis = axis_at(node, 1, len(shape))
    if shape is None or items is None or axis is None:
        return None
    parts = filled([shape[axis]], [lengths.of(item) for item in items])
    if parts is None:
        return None
    return [*shape[:axis], *parts, *shape[axis + 1 :]]


def _unsqueezed(lengths: Lengths, node: Node) -> Shape | None:
    shape = lengths.shape(node.inputsAt(0))
    axis = None
    if shape is not None:
        axis = axis_at(node, 1, len(shape) + 1)
    if shape is None or axis is None:
        return None
    return [*shape[:axis], ONE, *shape[axis:]]


def _expanded(lengths: Lengths, node: Node) -> Shape | None:
    shape = lengths.shape(node.inputsAt(0))
    items = ir.list_items(node.inputsAt(1))
    if shape is None or items is None or len(items) < len(shape):
        return None
    aligned = [ONE] * (len(items) - len(shape)) + shape
    return [
        lengths.of(item) or length for item, length in zip(items, aligned, strict=True)
    ]


def _reduced(lengths: Lengths, node: Node) -> Shape | None:
    shape = lengths.shape(node.inputsAt(0))
    axes = ir.int_list(node.inputsAt(1))
    if not shape or not axes or ir.constant(node.inputsAt(2)) is not True:
        return None
    reduced = {axis % len(shape) for axis in axes}
    return [ONE if axis in reduced else length for axis, length in enumerate(shape)]


def _fitting(lengths: Lengths, node: Node) -> Shape | None:
    tensors = [value for value in node.inputs() if value.type().kind() == "TensorType"]
    sides = [lengths.shape(value) for value in tensors]
    # The condition of `where` is last: the selected values determine more of the sizes.
    if node.kind() == "aten::where":
        sides = sides[1:] + sides[:1]
    shapes = [side for side in sides if side is not None]
    if shapes and len(shapes) == len(tensors):
        return _stretched(lengths, node, shapes)
    return None


def _multiplied(lengths: Lengths, node: Node) -> Shape | None:
    first = int(node.kind() == "aten::baddbmm")  # whose first operand is the addend
    left = lengths.shape(node.inputsAt(first))
    right = lengths.shape(node.inputsAt(first + 1))
    if left is None or right is None or min(len(left), len(right)) < 2:
        return None
    batch = _stretched(lengths, node, [left[:-2], right[:-2]])
    return [*batch, left[-2], right[-1]]


def _stretched(lengths: Lengths, node: Node, sides: Sequence[Shape]) -> Shape:
    """The broadcast shape of compatible tensors: an axis of length 1 takes the length of the
    others.
    """
    rank = max(len(side) for side in sides)
    aligned = [[ONE] * (rank - len(side)) + side for side in sides]
    return [
        _fit(lengths, named(node.output(), axis), column)
        for axis, column in enumerate(zip(*aligned, strict=True))
    ]


def _fit(lengths: Lengths, unnamed: Amount, column: Sequence[Amount]) -> Amount:
    candidates = [length for length in column if length != ONE] or [ONE]
    for length in candidates:
        if not length.names:
            return length
    if all(length == candidates[0] for length in candidates):
        return candidates[0]
    lengths.guesses[unnamed.names[0]] = candidates[0]
    return unnamed


Rule = Callable[[Lengths, Any], Shape | None]
_KINDS: dict[Rule, str] = {
    _same: (
        "softmax log_softmax relu gelu sigmoid tanh neg layer_norm to logical_not bitwise_not triu"
        " tril zeros_like ones_like full_like fake_quantize_per_tensor_affine"
    ),
    _layer: "linear",
    _embedded: "embedding",
    _convolved: "_convolution",
    _as_other: "expand_as",
    _reshaped: "reshape",
    _unflattened: "unflatten",
    _unsqueezed: "unsqueeze",
    _expanded: "expand",
    _reduced: "amax",
    _fitting: "add sub mul div masked_fill where eq ne lt le gt ge logical_and logical_or",
    _multiplied: "matmul bmm baddbmm",
}
_RULES = {
    f"aten::{name}": rule for rule, names in _KINDS.items() for name in names.split()
} | dict.fromkeys(MOVES, _moved)
