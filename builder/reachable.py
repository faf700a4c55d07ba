"""A search through a graph: everything that can be reached from some of its nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")


def reachable(
    starts: Iterable[Item], following: Callable[[Item], Iterable[Item]]
) -> Iterator[Item]:
    """The starts and all items that follow from them, each once, the nearest first. Graphs may be
    thousands of nodes deep, so this is no recursion.
    """
    seen = set[Item]()
    waiting = deque(starts)
    while waiting:
        item = waiting.popleft()
        if item not in seen:
            seen.add(item)
            yield item
            waiting.extend(following(item))
