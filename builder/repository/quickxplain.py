"""QuickXplain (Junker, AAAI 2004): a smallest set that passes, in few tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
Passes = Callable[[Sequence[T]], bool]


def minimal(items: Sequence[T], passes: Passes[T]) -> list[T]:
    """A minimal subset that passes, in the order of `items`, which must pass as a whole.

    If supersets of passing sets pass, k of n items take about 2k(log2(n/k) + 1) tests. Otherwise
    the result still passes, but may not be minimal.
    """
    if passes([]):
        return []
    needed = _needed([], [], list(items), passes)
    ordered = [item for item in items if item in set(needed)]
    return ordered if passes(ordered) else list(items)


def _needed(
    present: list[T], new: list[T], items: list[T], passes: Passes[T]
) -> list[T]:
    """The part of `items` that must be added to `present`, whose last addition was `new`."""
    if new and passes(present):
        return []
    if len(items) <= 1:
        return items
    half = len(items) // 2
    first = items[:half]
    second = items[half:]
    late = _needed([*present, *first], first, second, passes)
    return [*_needed([*present, *late], late, first, passes), *late]
