"""Ifs with writes: the memory that either branch wrote becomes an output of the if."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder.graph_types import Block, Node, Value
from builder.lowering import ir
from builder.lowering.passes.functionalize.alias import Alias, Items, Storage
from builder.lowering.passes.functionalize.memory import Memory, cannot
from builder.lowering.passes.functionalize.sharing import holds

if TYPE_CHECKING:
    from builder.lowering.passes.functionalize.walk import Walk


@dataclass
class Final:
    """The state of an alias at the end of a branch: its value, and for a container the elements and
    their values.
    """

    value: Any
    items: Items | None = None
    values: tuple[Any, ...] = ()


@dataclass
class End:
    """One return value of a branch: an alias, its memory and that of its elements."""

    alias: Alias
    storages: list[Storage]


def branch(walk: Walk, node: Node) -> None:
    """Rewrite both branches of an if from the same memory state, and join their results."""
    memory, ends, finals = walk.memory, [], []
    age = memory.journal.tick()
    for block in node.blocks():
        mark = memory.journal.mark()
        returned = walk.block(block, block.returnNode())
        ends.append([_end(memory, value) for value in returned])
        finals.append(
            {
                alias: _final(memory, alias)
                for alias in memory.journal.changed(mark)
                if _outlives(alias, age)
            }
        )
        memory.journal.undo(mark)
    changed = dict.fromkeys([*finals[0], *finals[1]])
    # read all values before the first is joined
    left = [
        [
            _state_after(memory, block, final, alias)
            for block, final in zip(node.blocks(), finals, strict=True)
        ]
        for alias in changed
    ]
    memory.at = node
    for alias, both in zip(changed, left, strict=True):
        _join(memory, node, alias, both)
    for output, one, other in zip(list(node.outputs()), *ends, strict=False):
        _output(memory, output, one, other)


def _end(memory: Memory, value: Value) -> End | None:
    if holds(value):
        return End(memory.alias(value), memory.storages(value))
    return None


def _state_after(
    memory: Memory, block: Block, finals: dict[Alias, Final], alias: Alias
) -> Final:
    """The state of an alias after a branch. A container that the branch does not change may hold a
    value that it changes.
    """
    if alias in finals:
        return finals[alias]
    mark = memory.journal.mark()
    memory.at = block.returnNode()
    for other, final in finals.items():
        if other.items is None or final.items is None:
            memory.renew(other, final.value)
            other.items = None
        else:
            memory.journal.note(other)
            other.current = final.value
            other.items = final.items.copy()
            other.held = (-1,)
    left = _final(memory, alias)
    memory.journal.undo(mark)
    return left


def _outlives(alias: Alias, age: int) -> bool:
    """Whether an alias is joined after the if: only roots and containers that existed before it.
    Views are recomputed from their roots.
    """
    return alias.born < age and (alias.items is not None or alias.parent is None)


def _final(memory: Memory, alias: Alias) -> Final:
    if alias.items is None:
        return Final(memory.now(alias))
    items = alias.items.copy()
    whole = memory.now(alias)
    return Final(whole, items, tuple(memory.read(item) for item in _values(items)))


def _values(items: Items) -> list[Value]:
    if isinstance(items, dict):
        return list(items.values())
    return list(items)


def _join(memory: Memory, node: Node, alias: Alias, finals: list[Final]) -> None:
    one, other = finals
    if one.items is None or other.items is None:
        return _join_whole(memory, node, alias, finals)
    keys = [
        list(f.items) if isinstance(f.items, dict) else len(f.items or ())
        for f in finals
    ]
    if keys[0] == keys[1]:
        return _join_items(memory, node, alias, one, other)
    if isinstance(alias.items, dict):
        what = "the branches of an if create different keys in a dictionary"
        raise cannot(
            node, what, "create the same keys in both branches, to let TensorRT run it"
        )
    return _join_whole(memory, node, alias, finals)


def _join_whole(memory: Memory, node: Node, alias: Alias, finals: list[Final]) -> None:
    """Create one output for both branches: a tensor, or a list whose elements are not known after
    the if, and which may hold the elements of either branch.
    """
    if alias.items is not None:
        held = [
            item
            for final in finals
            for item in _values(final.items or [])
            if holds(item)
        ]
        alias.storage.link(inner.storage for inner in memory.with_elements(alias))
        alias.storage.link(
            storage for item in held for storage in memory.storages(item)
        )
        memory.journal.note(alias)
        alias.items = None
    memory.renew(alias, _phi(node, finals[0].value, finals[1].value))


def _join_items(
    memory: Memory, node: Node, alias: Alias, one: Final, other: Final
) -> None:
    """Join containers with the same number of elements in both branches: each differing element
    becomes an output of the if.
    """
    joined = []
    pairs = zip(
        _values(one.items or []),
        _values(other.items or []),
        one.values,
        other.values,
        strict=True,
    )
    for first, second, left, right in pairs:
        if first == second:
            joined.append(first)
            continue
        output = _phi(node, left, right)
        memory.linked(output, [v for v in (first, second) if holds(v)])
        joined.append(output)
    items = (
        dict(zip(one.items, joined, strict=True))
        if isinstance(one.items, dict)
        else joined
    )
    memory.journal.note(alias)
    alias.items = items
    alias.held = (-1,)


def _phi(node: Node, one: Value, other: Value) -> Value:
    """A new output of an if: `one` from its first branch, `other` from its second."""
    output = node.addOutput()
    output.setType(
        one.type() if one.type().str() == other.type().str() else torch_type(one, other)
    )
    for block, value in zip(node.blocks(), (one, other), strict=True):
        block.registerOutput(value)
    return output


def torch_type(one: Any, other: Any) -> Any:
    """The type of either value: two tensors of different known shape are a tensor."""
    tensor = next(
        (v.type() for v in (one, other) if v.type().kind() != "TensorType"), None
    )
    if tensor is not None:
        return tensor
    return ir.TENSOR


def _output(memory: Memory, output: Value, one: End | None, other: End | None) -> None:
    if one is None or other is None:
        return
    if one.alias is other.alias:
        return memory.same(output, one.alias)
    storage = Storage()
    storage.link([*one.storages, *other.storages])
    memory.define(output, storage)
    return None
