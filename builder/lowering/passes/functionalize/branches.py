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
    memory = walk.memory
    ends = []
    finals = []
    age = memory.journal.tick()
    for block in node.blocks():
        mark = memory.journal.mark()
        returned = walk.block(block, block.returnNode())
        ends.append([_end(memory, value) for value in returned])
        outliving = [
            alias for alias in memory.journal.changed(mark) if _outlives(alias, age)
        ]
        finals.append({alias: _final(memory, alias) for alias in outliving})
        memory.journal.undo(mark)
    changed = dict.fromkeys([*finals[0], *finals[1]])
    # read all values before the first is joined
    states = [
        [
            _state_after(memory, block, final, alias)
            for block, final in zip(node.blocks(), finals, strict=True)
        ]
        for alias in changed
    ]
    memory.at = node
    for alias, finals_of_alias in zip(changed, states, strict=True):
        _join(memory, node, alias, finals_of_alias)
    for output, if_true, if_false in zip(list(node.outputs()), *ends, strict=False):
        _output(memory, output, if_true, if_false)


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
    for changed, final in finals.items():
        if changed.items is None or final.items is None:
            memory.renew(changed, final.value)
            changed.items = None
        else:
            memory.journal.note(changed)
            changed.current = final.value
            changed.items = final.items.copy()
            changed.contents = (-1,)
    state = _final(memory, alias)
    memory.journal.undo(mark)
    return state


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
    if_true, if_false = finals
    if if_true.items is None or if_false.items is None:
        return _join_whole(memory, node, alias, finals)
    if _form(if_true.items) == _form(if_false.items):
        return _join_items(memory, node, alias, if_true, if_false)
    if isinstance(alias.items, dict):
        problem = "the branches of an if create different keys in a dictionary"
        raise cannot(
            node,
            problem,
            "create the same keys in both branches, to let TensorRT run it",
        )
    return _join_whole(memory, node, alias, finals)


def _form(items: Items) -> list[str] | int:
    """The keys of a dictionary, or the number of elements of a list."""
    if isinstance(items, dict):
        return list(items)
    return len(items)


def _join_whole(memory: Memory, node: Node, alias: Alias, finals: list[Final]) -> None:
    """Create one output for both branches: a tensor, or a list whose elements are not known after
    the if, and which may hold the elements of either branch.
    """
    if alias.items is not None:
        elements = [
            item
            for final in finals
            for item in _values(final.items or [])
            if holds(item)
        ]
        alias.storage.link(inner.storage for inner in memory.with_elements(alias))
        alias.storage.link(
            storage for item in elements for storage in memory.storages(item)
        )
        memory.journal.note(alias)
        alias.items = None
    memory.renew(alias, _phi(node, finals[0].value, finals[1].value))


def _join_items(
    memory: Memory, node: Node, alias: Alias, if_true: Final, if_false: Final
) -> None:
    """Join containers with the same number of elements in both branches: each differing element
    becomes an output of the if.
    """
    joined = []
    pairs = zip(
        _values(if_true.items or []),
        _values(if_false.items or []),
        if_true.values,
        if_false.values,
        strict=True,
    )
    for first, second, first_value, second_value in pairs:
        if first == second:
            joined.append(first)
            continue
        output = _phi(node, first_value, second_value)
        memory.linked(output, [value for value in (first, second) if holds(value)])
        joined.append(output)
    items: Items = joined
    if isinstance(if_true.items, dict):
        items = dict(zip(if_true.items, joined, strict=True))
    memory.journal.note(alias)
    alias.items = items
    alias.contents = (-1,)


def _phi(node: Node, if_true: Value, if_false: Value) -> Value:
    """A new output of an if: `if_true` from its first branch, `if_false` from its second."""
    output = node.addOutput()
    if if_true.type().str() == if_false.type().str():
        output.setType(if_true.type())
    else:
        output.setType(torch_type(if_true, if_false))
    for block, value in zip(node.blocks(), (if_true, if_false), strict=True):
        block.registerOutput(value)
    return output


def torch_type(first: Any, second: Any) -> Any:
    """The type of either value: two tensors of different known shape are a tensor."""
    for value in (first, second):
        if value.type().kind() != "TensorType":
            return value.type()
    return ir.TENSOR


def _output(
    memory: Memory, output: Value, if_true: End | None, if_false: End | None
) -> None:
    ends = [end for end in (if_true, if_false) if end is not None]
    if not ends:
        return
    if len(ends) == 2 and ends[0].alias is ends[1].alias:
        return memory.same(output, ends[0].alias)
    storage = Storage()
    storage.link(shared for end in ends for shared in end.storages)
    memory.define(output, storage)
    return None
