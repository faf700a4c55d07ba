"""Who shares memory with whom: the state that functionalisation carries along a block.

Every value is an Alias. Aliases of one Storage are known to share memory, through a chain of views
from the root. Storages that only may share memory (a reshape that perhaps copied) are linked:
writing one taints the others, and a tainted value must not be read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Items = list[Any] | dict[Any, Any]


@dataclass(eq=False, slots=True)
class Storage:
    """Memory that a family of views shares; `version` changes with every write, `taint` is a node
    that may have written it.
    """

    version: int = 0
    constant: bool = False
    taint: Any = None
    linked: set[Storage] | None = None
    root: Alias | None = None
    built: bool = False
    """Whether this is a container that the graph builds: an object apart from all others so
    built.
    """

    def link(self, others: Iterable[Storage]) -> None:
        """Say that these storages may be the same memory."""
        family = self.linked or {self}
        for other in others:
            family |= other.linked or {other}
        for member in family:
            member.linked = family


@dataclass(eq=False, slots=True)
class Alias:
    """A tensor or a container as it is now: `current` holds it as of `version` of its storage.

    `view` is the node that made it from `parent`; `element` the position when `parent` is a list of
    views. `items` are the elements of a container that are known, as values of the original graph;
    `held` those that `current` was built from. `born` orders aliases by age; `siblings` are the
    other elements of the same list of views, which lie beside this one and never under it.
    """

    current: Any
    storage: Storage
    parent: Alias | None = None
    view: Any = None
    element: int | None = None
    version: int = 0
    items: Items | None = None
    held: tuple[int, ...] = ()
    born: int = 0
    siblings: Sequence[Alias] = ()


State = tuple[Any, int, Items | None, tuple[int, ...]]


class Journal:
    """Changes of aliases in order, so that those made inside a block can be taken back when the
    block ends.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Alias, State, Storage, int]] = []
        self._clock = 0

    def tick(self) -> int:
        """A version number that was never used before."""
        self._clock += 1
        return self._clock

    def note(self, alias: Alias) -> None:
        """Remember an alias and its storage as they are, before they change."""
        items = alias.items.copy() if alias.items is not None else None
        state = (alias.current, alias.version, items, alias.held)
        self._entries.append((alias, state, alias.storage, alias.storage.version))

    def mark(self) -> int:
        """A point to come back to."""
        return len(self._entries)

    def changed(self, mark: int) -> list[Alias]:
        """The aliases that changed since `mark`, each once, in order."""
        return list(dict.fromkeys(entry[0] for entry in self._entries[mark:]))

    def undo(self, mark: int) -> None:
        """Put everything back as it was at `mark`; taints stay, for memory that one branch wrote is
        not known afterwards.
        """
        while len(self._entries) > mark:
            alias, state, storage, version = self._entries.pop()
            alias.current, alias.version, alias.items, alias.held = state
            storage.version = version
