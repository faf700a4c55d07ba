"""Products of integers and symbolic sizes, and the effect of a reshape on such axes."""

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
    """Monomial: an integer coefficient times symbolic sizes."""

    number: int
    names: Names

    def over(self, divisor: Amount) -> Amount | None:
        """The quotient, or None if it is not such a product."""
        if not divisor.number or self.number % divisor.number:
            return None
        if not divisor.names:
            return Amount(self.number // divisor.number, self.names)
        if without(divisor.names, self.names):
            return None
        return Amount(self.number // divisor.number, without(self.names, divisor.names))


def without(names: Names, others: Names) -> Names:
    """The names that are not among the others, each as often as it counts more often."""
    remaining = list(names)
    for name in others:
        if name in remaining:
            remaining.remove(name)
    return tuple(remaining)


def amount(number: int) -> Amount:
    """A constant."""
    return Amount(number, ())


ONE = amount(1)


def product(amounts: Sequence[Amount]) -> Amount:
    """The product of all factors."""
    number = 1
    names = list[tuple[int, ...]]()
    count = 0
    for factor in amounts:
        number *= factor.number
        if factor.names:
            names += factor.names
            count += 1
    return Amount(number, tuple(sorted(names) if count > 1 else names))


def of_size(*name: int) -> Amount:
    """A size by its name."""
    return Amount(1, (name,))


def named(value: Value, axis: int) -> Amount:
    """A symbolic size with this name."""
    return of_size(value.unique(), axis)


def of_item(item: Any, size_of_node: Callable[[Any], Amount | None]) -> Amount | None:
    """The product for a size in a list; None for a size to infer. `size_of_node` returns it for a
    node that reads a size of a tensor, and None for any other.
    """
    number = item
    if not isinstance(item, int):
        number = ir.constant(item)
    if number == -1:
        return None
    if number is not None:
        return amount(number)
    node = item.node()
    if node.kind() == "aten::mul":
        factors = [of_item(value, size_of_node) for value in node.inputs()]
        known_factors = [factor for factor in factors if factor is not None]
        if len(known_factors) == len(factors):
            return product(known_factors)
    return size_of_node(node) or of_size(item.unique())


Shape = list[Amount]
"""The length of each axis."""


def filled(shape: Shape, requested: Sequence[Amount | None]) -> Shape | None:
    """The requested axes, with the inferred size filled in; None if it cannot be determined."""
    if None not in requested:
        return [size for size in requested if size is not None]
    inferred = product(shape).over(product([size or ONE for size in requested]))
    if inferred is None or list(requested).count(None) > 1:
        return None
    return [size or inferred for size in requested]


class CommonFactor(NamedTuple):
    """A common factor of an axis before a reshape and an axis after it (by position)."""

    before: int
    after: int
    length: Amount


def alias(whole: Amount, result: Amount) -> dict[Any, Any]:
    """Two names of one size, which follow from the equal number of elements before and after a
    reshape. None: all names already agree.
    """
    removed = without(whole.names, result.names)
    new = without(result.names, whole.names)
    if len(removed) == len(new) == 1 and whole.number == result.number:
        return {new[0]: removed[0]}
    return {}


def renamed(size: Amount, names: Mapping[Any, Any]) -> Amount:
    """The product with its symbolic sizes renamed."""
    if not names or not size.names:
        return size
    return Amount(
        size.number, tuple(sorted(names.get(name, name) for name in size.names))
    )


def common(
    before: Sequence[Amount], after: Sequence[Amount]
) -> list[CommonFactor] | None:
    """The common factors of the axes on both sides, from the first axis on; None if the axes of one
    side do not divide those of the other.
    """
    factors = list[CommonFactor]()
    lefts = list(before)
    rights = list(after)
    i = j = 0
    while i < len(lefts) and j < len(rights):
        length = rights[j]
        if rights[j].over(lefts[i]):
            length = lefts[i]
        quotient_before = lefts[i].over(length)
        quotient_after = rights[j].over(length)
        if quotient_before is None or quotient_after is None:
            return None
        factors.append(CommonFactor(i, j, length))
        lefts[i], rights[j] = quotient_before, quotient_after
        i = i + (quotient_before == ONE)
        j = j + (quotient_after == ONE)
    if i == len(lefts) and j == len(rights):
        return factors
    return None
