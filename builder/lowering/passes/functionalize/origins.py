"""The origins of values inside a loop: the memory that they may share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.graph_types import Block, Node, Value
from builder.lowering import ir
from builder.lowering.passes.functionalize.sharing import holds, sources, writes


@dataclass(frozen=True)
class Origins:
    """The values from outside a loop, and those created inside it, that a value may share memory
    with.
    """

    outer: dict[int, Any] = field(default_factory=dict)
    fresh: frozenset[int] = frozenset()

    @property
    def keys(self) -> frozenset[int]:
        return self.fresh | self.outer.keys()


def body_of(loop: Node) -> list[Node]:
    """All nodes in the body of a loop, at every depth."""
    return list(ir.walk(ir.first_block(loop)))


def values_inside(loop: Node, body: Sequence[Node]) -> set[int]:
    """The ids of all values that the body of a loop defines, block inputs included."""
    inside = {value.unique() for node in body for value in node.outputs()}
    inside |= {
        value.unique()
        for owner in [loop, *body]
        for block in ir.blocks_of(owner)
        for value in block.inputs()
    }
    return inside


def stores(node: Node) -> bool:
    """Whether a node puts values into a list or a dictionary."""
    return writes(node) and node.inputsAt(0).type().kind() != "TensorType"


def origins(
    targets: Iterable[Value], inside: set[int], stored: Iterable[Any] = ()
) -> Origins:
    """The values that any of these may share memory with, in this iteration or an earlier one. A
    value that is read from a container may be any of `stored`.
    """
    outer: dict[int, Any] = {}
    fresh = set[int]()
    seen = set[int]()
    pending = list(targets)
    while pending:
        value = pending.pop()
        if value.unique() in seen:
            continue
        seen.add(value.unique())
        if value.unique() not in inside:
            outer[value.unique()] = value
            continue
        before = _sources(value)
        pending.extend(before)
        if value.node().kind() not in _PASSED_ON and not all(map(_is_tensor, before)):
            pending.extend(stored)
        if not before and holds(value) and not ir.is_none(value):
            fresh.add(value.unique())
    return Origins(dict(sorted(outer.items())), frozenset(fresh))


@dataclass
class Group:
    """Values that may be the same memory: indices of loop-carried values, and values from outside
    the loop.
    """

    carried: list[int] = field(default_factory=list)
    outer: list[Any] = field(default_factory=list)


def shared_between_iterations(loop: Node) -> list[Group]:
    """Groups of values that may be the same memory when an iteration starts.

    `prev = cur` at the end of the body makes `prev` share memory with `cur` in the next iteration,
    where a write to one of them comes before the assignment in program order.
    """
    body = body_of(loop)
    inside = values_inside(loop, body)
    groups = _Groups()
    for index, param in enumerate(list(ir.first_block(loop).inputs())[1:]):
        if holds(param):
            groups.join(origins([param], inside), index)
    for node in body:
        if stores(node):
            stored = [value for value in ir.inputs(node) if holds(value)]
            groups.join(origins(stored, inside))
    return groups.shared()


class _Groups:
    """Disjoint sets of value ids, and the group that each set represents."""

    def __init__(self) -> None:
        self._parent: dict[int, int] = {}
        self._carried: list[tuple[int, int]] = []
        self._outer: dict[int, Any] = {}

    def join(self, values: Origins, carried: int | None = None) -> None:
        """Put the values and the loop-carried value at an index into one group."""
        keys = sorted(values.keys)
        if not keys:
            return
        for key in keys:
            self._parent[self._top(key)] = self._top(keys[0])
        self._outer |= values.outer
        if carried is not None:
            self._carried.append((keys[0], carried))

    def shared(self) -> list[Group]:
        """The groups with at least two values."""
        groups: dict[int, Group] = {}
        for key, index in self._carried:
            groups.setdefault(self._top(key), Group()).carried.append(index)
        for key, value in self._outer.items():
            groups.setdefault(self._top(key), Group()).outer.append(value)
        return [
            group
            for group in groups.values()
            if len(group.carried) + len(group.outer) > 1
        ]

    def _top(self, key: int) -> int:
        while self._parent.setdefault(key, key) != key:
            key = self._parent[key]
        return key


_PASSED_ON = ("prim::Param", "prim::If", "prim::Loop")


def _is_tensor(value: Value) -> bool:
    return bool(value.type().kind() == "TensorType")


def _sources(value: Value) -> list[Value]:
    """The values that a value inside a loop may share memory with, one step back."""
    node = value.node()
    at = value.offset()
    if node.kind() == "prim::Param":
        return _sources_of_param(node.owningBlock(), at)
    if node.kind() in ("prim::If", "prim::Loop"):
        skip = node.kind() == "prim::Loop"
        ends = [list(block.outputs())[at + skip] for block in node.blocks()]
        return ends + ([node.inputsAt(at + 2)] if skip else [])
    if writes(node):
        return [node.inputsAt(0)]
    return sources(node, ir.inputs(node))


def _sources_of_param(block: Block, at: int) -> list[Value]:
    """The origins of a loop's parameter: its initial value and its value after the previous
    iteration. The first parameter is the counter.
    """
    if at == 0:
        return []
    return [block.owningNode().inputsAt(at + 1), list(block.outputs())[at]]
