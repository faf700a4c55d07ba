"""Alias analysis: the state of functionalization along a block.

Every value is an Alias. Aliases of one Storage are known to share memory, through a chain of views
from the root. Storages that may share memory (a reshape that may copy) are linked: writing one
taints the others, and a tainted value must not be read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Items = list[Any] | dict[Any, Any]


@dataclass(eq=False, slots=True)
class Storage:
    """Memory that a group of views shares. `version` changes with every write; `taint` is a node
    that may have written it.
    """

    version: int = 0
    constant: bool = False
    taint: Any = None
    linked: set[Storage] | None = None
    root: Alias | None = None
    built: bool = False
    """Whether this is a container that the graph builds, and thus distinct from all other such
    containers.
    """
    repeats: bool = False
    """Whether several elements of its root may be one position of memory, as after expand."""

    def link(self, others: Iterable[Storage]) -> None:
        """Record that these storages may be the same memory."""
        family = self.linked or {self}
        for storage in others:
            family |= storage.linked or {storage}
        for member in family:
            member.linked = family


@dataclass(eq=False, slots=True)
class Alias:
    """The current state of a tensor or container.

    `current` is its value as of `version` of its storage. `view` is the node that created it from
    `parent`, and `element` the index if `parent` is a list of views. `items` are the known elements
    of a container, as values of the original graph; `contents` identifies those that `current`
    was built from. `born` orders aliases by age. `siblings` are the other elements of the same list
    of views, which never overlap with this one.
    """

    current: Any
    storage: Storage
    parent: Alias | None = None
    view: Any = None
    element: int | None = None
    version: int = 0
    items: Items | None = None
    contents: tuple[int, ...] = ()
    born: int = 0
    siblings: Sequence[Alias] = ()

    @property
    def may_share(self) -> bool:
        """Whether this may be a view of a larger tensor."""
        return self.parent is not None or bool(self.storage.linked)


State = tuple[Any, int, Items | None, tuple[int, ...]]


class Journal:
    """The changes of aliases in order, so that changes inside a block can be undone when the block
    ends.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Alias, State, Storage, int]] = []
        self._clock = 0

    def tick(self) -> int:
        """A new version number."""
        self._clock += 1
        return self._clock

    def note(self, alias: Alias) -> None:
        """Save the state of an alias and its storage before a change."""
        items = None
        if alias.items is not None:
            items = alias.items.copy()
        state = (alias.current, alias.version, items, alias.contents)
        self._entries.append((alias, state, alias.storage, alias.storage.version))

    def mark(self) -> int:
        """A position in the journal for `undo`."""
        return len(self._entries)

    def changed(self, mark: int) -> list[Alias]:
        """The aliases that changed since `mark`, each once, in order."""
        return list(dict.fromkeys(entry[0] for entry in self._entries[mark:]))

    def undo(self, mark: int) -> None:
        """Restore the state at `mark`. Taints are kept, because memory that one branch wrote is
        unknown afterwards.
        """
        while len(self._entries) > mark:
            alias, state, storage, version = self._entries.pop()
            alias.current, alias.version, alias.items, alias.contents = state
            storage.version = version
