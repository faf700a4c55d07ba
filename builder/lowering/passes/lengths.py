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

    def __init__(self, facts: Facts, known: Mapping[int, Sequence[Any]]) -> None:
        """`known` maps input values to shapes. An axis that is not a number is unknown."""
        self._facts = facts
        self._known = known
        self._shapes = dict[int, Shape | None]()
        self.guesses: dict[Any, Amount] = {}
        """For a size from broadcasting: the size of one operand. It differs only if that one is 1.
        """

    def learn(self, node: Node) -> None:
        """Record the shapes of a node's outputs."""
        self._facts.learn(node)
        rule = _RULES.get(node.kind())
        if rule is not None and node.outputsSize() == 1 and not ir.in_fallback(node):
            found = rule(self, node)
            if found is not None:
                self._shapes[node.output().unique()] = found

    def shape(self, value: Value) -> Shape | None:
        """The shape of a value; None if its rank is not known."""
        if value.unique() not in self._shapes:
            self._shapes[value.unique()] = self._new_shape(value)
        return self._shapes[value.unique()]

    def _new_shape(self, value: Value) -> Shape | None:
        """A new symbolic size or the known number for each axis."""
        rank = self._facts.rank(value)
        known = (
            weight_shape(value)
            or self._known.get(value.unique())
            or (None,) * (rank or 0)
        )
        if rank is None or len(known) != rank:
            return None
        return [
            amount(length)
            if isinstance(length, int) and length >= 0
            else named(value, axis)
            for axis, length in enumerate(known)
        ]

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
        self, shape: Shape, wanted: Sequence[Amount | None]
    ) -> list[CommonFactor] | None:
        """The common factors of a tensor's axes and of the axes after a reshape; None if not known.
        A requested size of None is inferred.
        """
        made = filled(shape, wanted)
        if made is None:
            return None
        whole = product(made)
        other = alias(product(shape), whole)
        found = common(
            [renamed(one, other) for one in shape],
            [renamed(one, other) for one in made],
        )
        return found or common([self._guessed(one, whole.names) for one in shape], made)

    def _guessed(self, one: Amount, wanted: Names, steps: int = 12) -> Amount:
        """The requested shape with guesses for unnamed sizes. The guesses are correct for every
        valid input: a reshape keeps the number of elements, so that a size whose guess is 1 cannot
        be larger.
        """
        found = [amount(one.number)]
        for name in one.names:
            guess = None
            if steps and name not in wanted:
                guess = self.guesses.get(name)
            own = of_size(*name)
            found.append(
                own if guess is None else self._guessed(guess, wanted, steps - 1)
            )
        return product(found)


def _same(lengths: Lengths, node: Node) -> Shape | None:
    return lengths.shape(node.inputsAt(0))


def _layer(lengths: Lengths, node: Node) -> Shape | None:
    read = lengths.shape(node.inputsAt(0))
    wide = width(node.output())
    if read is None or wide is None:
        return None
    return [*read[:-1], amount(wide)]


def _moved(lengths: Lengths, node: Node) -> Shape | None:
    read = lengths.shape(node.inputsAt(0))
    if read is None:
        return None
    return moved(node, read)


def _embedded(lengths: Lengths, node: Node) -> Shape | None:
    """The shape of an embedding: the axes of the indices, then the width of the table."""
    table = lengths.shape(node.inputsAt(0))
    indices = lengths.shape(node.inputsAt(1))
    if table is None or indices is None:
        return None
    return [*indices, table[-1]]


def _as_other(lengths: Lengths, node: Node) -> Shape | None:
    return lengths.shape(node.inputsAt(1))


def _reshaped(lengths: Lengths, node: Node) -> Shape | None:
    read = lengths.shape(node.inputsAt(0))
    items = ir.list_items(node.inputsAt(1))
    if items is None:
        return None
    wanted = [lengths.of(item) for item in items]
    axes = (None if read is None else filled(read, wanted)) or wanted
    return [one or named(node.output(), axis) for axis, one in enumerate(axes)]


def _unflattened(lengths: Lengths, node: Node) -> Shape | None:
    read = lengths.shape(node.inputsAt(0))
    items = ir.list_items(node.inputsAt(2))
    axis = None
    if read is not None:
        axis = axis_at(node, 1, len(read))
    if read is None or items is None or axis is None:
        return None
    made = filled([read[axis]], [lengths.of(item) for item in items])
    if made is None:
        return None
    return [*read[:axis], *made, *read[axis + 1 :]]


def _unsqueezed(lengths: Lengths, node: Node) -> Shape | None:
    read = lengths.shape(node.inputsAt(0))
    axis = None
    if read is not None:
        axis = axis_at(node, 1, len(read) + 1)
    if read is None or axis is None:
        return None
    return [*read[:axis], ONE, *read[axis:]]


def _expanded(lengths: Lengths, node: Node) -> Shape | None:
    read = lengths.shape(node.inputsAt(0))
    items = ir.list_items(node.inputsAt(1))
    if read is None or items is None or len(items) < len(read):
        return None
    kept = [ONE] * (len(items) - len(read)) + read
    return [
        lengths.of(item) or length for item, length in zip(items, kept, strict=True)
    ]


def _reduced(lengths: Lengths, node: Node) -> Shape | None:
    read = lengths.shape(node.inputsAt(0))
    axes = ir.int_list(node.inputsAt(1))
    if not read or not axes or ir.constant(node.inputsAt(2)) is not True:
        return None
    gone = {axis % len(read) for axis in axes}
    return [ONE if axis in gone else length for axis, length in enumerate(read)]


def _fitting(lengths: Lengths, node: Node) -> Shape | None:
    tensors = [value for value in node.inputs() if value.type().kind() == "TensorType"]
    sides = [lengths.shape(value) for value in tensors]
    # The condition of `where` is last: the selected values determine more of the sizes.
    if node.kind() == "aten::where":
        sides = sides[1:] + sides[:1]
    known = [side for side in sides if side is not None]
    if known and len(known) == len(tensors):
        return _stretched(lengths, node, known)
    return None


def _multiplied(lengths: Lengths, node: Node) -> Shape | None:
    first = int(node.kind() == "aten::baddbmm")  # whose first operand is the addend
    one = lengths.shape(node.inputsAt(first))
    other = lengths.shape(node.inputsAt(first + 1))
    if one is None or other is None or min(len(one), len(other)) < 2:
        return None
    batch = _stretched(lengths, node, [one[:-2], other[:-2]])
    return [*batch, one[-2], other[-1]]


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


def _fit(lengths: Lengths, own: Amount, column: Sequence[Amount]) -> Amount:
    known = [length for length in column if length != ONE] or [ONE]
    number = next((length for length in known if not length.names), None)
    if number is not None or all(length == known[0] for length in known):
        return number or known[0]
    lengths.guesses[own.names[0]] = known[0]
    return own


Rule = Callable[[Lengths, Any], Shape | None]
_KINDS: dict[Rule, str] = {
    _same: (
        "softmax log_softmax relu gelu sigmoid tanh neg layer_norm to logical_not bitwise_not triu"
        " tril zeros_like ones_like full_like fake_quantize_per_tensor_affine"
    ),
    _layer: "linear",
    _embedded: "embedding",
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
