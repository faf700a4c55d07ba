"""Products of numbers and of sizes that the inputs decide, and what a reshape makes of axes that
are so long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from builder.graph_types import Value
from builder.lowering import ir

Names = tuple[tuple[int, ...], ...]
"""Names of sizes, each as often as it counts, in their order: comparing tuples takes a tenth of the
time of comparing Counters.
"""


class Amount(NamedTuple):
    """A number times sizes that are not known."""

    number: int
    names: Names

    def over(self, other: Amount) -> Amount | None:
        """The quotient, where it is such a product."""
        if not other.number or self.number % other.number:
            return None
        if not other.names:
            return Amount(self.number // other.number, self.names)
        if without(other.names, self.names):
            return None
        return Amount(self.number // other.number, without(self.names, other.names))


def without(names: Names, others: Names) -> Names:
    """The names that are not among the others, each as often as it counts more often."""
    left = list(names)
    for name in others:
        if name in left:
            left.remove(name)
    return tuple(left)


def amount(number: int) -> Amount:
    """A number alone."""
    return Amount(number, ())


ONE = amount(1)


def product(amounts: Sequence[Amount]) -> Amount:
    """Of all of them."""
    number, names, count = 1, list[tuple[int, ...]](), 0
    for one in amounts:
        number *= one.number
        if one.names:
            names += one.names
            count += 1
    return Amount(number, tuple(sorted(names) if count > 1 else names))


def of_size(*name: int) -> Amount:
    """A size by its name."""
    return Amount(1, (name,))


def named(value: Value, axis: int) -> Amount:
    """A size by its own name."""
    return of_size(value.unique(), axis)


def of_item(item: Any, read: Callable[[Any], Amount | None]) -> Amount | None:
    """What a size in a list amounts to; None for one that is to be inferred. `read` gives it for a
    node that reads a size of a tensor, and None for any other.
    """
    known = item if isinstance(item, int) else ir.constant(item)
    if known is not None:
        return None if known == -1 else amount(known)
    node = item.node()
    parts = (
        [of_item(value, read) for value in node.inputs()] if node.kind() == "aten::mul" else [None]
    )
    known = [part for part in parts if part is not None]
    return product(known) if len(known) == len(parts) else read(node) or of_size(item.unique())


Shape = list[Amount]
"""The length of each axis."""


def filled(shape: Shape, wanted: Sequence[Amount | None]) -> Shape | None:
    """The wanted axes, with the one that reshape infers; None where it cannot be determined."""
    if None not in wanted:
        return [one for one in wanted if one is not None]
    rest = product(shape).over(product([one or ONE for one in wanted]))
    return None if rest is None or list(wanted).count(None) > 1 else [one or rest for one in wanted]


class Piece(NamedTuple):
    """What an axis before a reshape and one after it (by their positions) have in common."""

    before: int
    after: int
    length: Amount


def alias(whole: Amount, made: Amount) -> dict[Any, Any]:
    """The one size that goes by two names, as there are as many elements after a reshape as before.
    (None at all: then no position of an element differs.)
    """
    gone, new = without(whole.names, made.names), without(made.names, whole.names)
    if len(gone) == len(new) == 1 and whole.number == made.number:
        return {new[0]: gone[0]}
    return {}


def renamed(one: Amount, names: Mapping[Any, Any]) -> Amount:
    """With other names for the sizes that have some here."""
    if not names or not one.names:
        return one
    return Amount(one.number, tuple(sorted(names.get(name, name) for name in one.names)))


def common(before: Sequence[Amount], after: Sequence[Amount]) -> list[Piece] | None:
    """What the axes on both sides are made of, from the first on; None where one side's do not
    divide the other's.
    """
    found, lefts, rights = list[Piece](), list(before), list(after)
    i = j = 0
    while i < len(lefts) and j < len(rights):
        length = lefts[i] if rights[j].over(lefts[i]) else rights[j]
        left, right = lefts[i].over(length), rights[j].over(length)
        if left is None or right is None:
            return None
        found.append(Piece(i, j, length))
        lefts[i], rights[j] = left, right
        i, j = i + (left == ONE), j + (right == ONE)
    return found if i == len(lefts) and j == len(rights) else None
