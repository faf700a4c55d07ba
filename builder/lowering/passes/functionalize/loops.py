"""Loops that write outside memory: that memory becomes a loop-carried value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.graph_types import Block, Node, Value
from builder.lowering import ir
from builder.lowering.passes.functionalize.alias import Alias, Storage
from builder.lowering.passes.functionalize.memory import Memory, cannot
from builder.lowering.passes.functionalize.origins import (
    Group,
    body_of,
    origins,
    shared_between_iterations,
    stores,
    values_inside,
)
from builder.lowering.passes.functionalize.sharing import holds, writes

if TYPE_CHECKING:
    from builder.lowering.passes.functionalize.walk import Walk

_FIX_OF_DICTIONARY = (
    "to let TensorRT run it, use keys that are constants in the source, or a tensor whose index is"
    " the key (index_add, scatter)"
)


def loop(walk: Walk, node: Node) -> None:
    """Rewrite a loop. Each iteration starts with the memory state of the previous one."""
    memory = walk.memory
    inits = ir.inputs(node)[2:]
    roots = _written_roots(memory, node)
    groups = shared_between_iterations(node) if roots else []
    walk.refresh(node, ir.inputs(node))
    node = _with_carried(memory, node, [memory.now(root) for root in roots])
    block, count = ir.first_block(node), len(inits)
    params, returns = list(block.inputs())[1:], list(block.outputs())[1:]
    stay_same = [_same_object(*pair) for pair in zip(returns, params, strict=False)]
    carried = []
    for init, param, is_same in zip(inits, params, stay_same, strict=False):
        _enter(memory, init, param, is_same)
        carried.append(init if is_same else param)
    _link(memory, groups, carried)
    storages_after = _iterate(walk, block, roots, params[count:])
    memory.at = node
    outputs = ir.outputs(node)
    for root, output in zip(roots, outputs[count:], strict=True):
        memory.renew(root, output)
    for init, param, is_same, storages, output in zip(
        inits, params, stay_same, storages_after, outputs, strict=False
    ):
        _leave(memory, init, param, is_same, storages, output)


def _iterate(
    walk: Walk, block: Block, roots: list[Alias], params: list[Value]
) -> list[list[Storage]]:
    """Rewrite the body of a loop, which receives the memory of the roots as `params` and returns it
    last. Returns the storages of the body's other results.
    """
    memory = walk.memory
    with memory.iteration():
        for root, param in zip(roots, params, strict=True):
            memory.renew(root, param)
        returned = walk.block(block, block.returnNode())[1:]
        storages = [
            memory.storages(value) if holds(value) else [] for value in returned
        ]
        for root in roots:
            block.registerOutput(memory.now(root))
    return storages


def _enter(memory: Memory, init: Value, param: Value, is_same: bool) -> None:
    if is_same:
        memory.same(param, memory.alias(init))
    elif holds(param):
        memory.linked(param, [init])


def _link(memory: Memory, groups: list[Group], carried: list[Value]) -> None:
    """Link values that may be the same memory from the second iteration on, before the body is
    walked: a write must taint the names of that memory from earlier iterations. `carried` are the
    loop's parameters, or the initial value of a parameter that stays the same object.
    """
    for group in groups:
        values = [*group.outer, *(carried[index] for index in group.carried)]
        if len({value.unique() for value in values}) == 1:
            continue  # one object, which already has an alias
        first, *others = (
            storage for value in values for storage in memory.storages(value)
        )
        first.link(others)


def _leave(
    memory: Memory,
    init: Value,
    param: Value,
    is_same: bool,
    storages: list[Storage],
    output: Value,
) -> None:
    if is_same:
        memory.same(output, memory.alias(init))
    elif holds(output):
        memory.alias(param).storage.link(storages)
        memory.linked(output, [init, param])


def _same_object(value: Value, param: Value) -> bool:
    """Whether an iteration returns the same tensor object that it received, possibly written in
    place.
    """
    while value != param:
        if not writes(value.node()):
            return False
        value = value.node().inputsAt(0)
    return holds(param)


def _written_roots(memory: Memory, node: Node) -> list[Alias]:
    """The outside memory that the body of a loop writes, found by following each written value to
    its origin.
    """
    body = body_of(node)
    targets = [inner.inputsAt(0) for inner in body if writes(inner)]
    if not targets:
        return []
    roots: dict[Alias, None] = {}
    stored = [
        value for inner in body if stores(inner) for value in ir.inputs(inner)[1:]
    ]
    written = origins(targets, values_inside(node, body), list(filter(holds, stored)))
    for value in written.outer.values():
        for alias in memory.with_elements(memory.alias(value)):
            roots[_root(memory, node, alias)] = None
    return list(roots)


def _root(memory: Memory, node: Node, alias: Alias) -> Alias:
    """The alias that becomes loop-carried: a tensor's whole memory, or a list of unknown length."""
    if isinstance(alias.items, dict):
        problem = "a dictionary changes in a loop with an unknown trip count"
        raise cannot(node, problem, _FIX_OF_DICTIONARY)
    if alias.items is not None and alias.current.type().kind() == "ListType":
        memory.forget_items(alias)
        return alias
    return alias.storage.root or alias


def _with_carried(memory: Memory, node: Node, carried: list[Value]) -> Node:
    """A copy of the loop `node` that also carries these values; `node` itself if there are none."""
    if not carried:
        return node
    old = ir.first_block(node)
    new = memory.graph.create(
        "prim::Loop", [*node.inputs(), *carried], node.outputsSize() + len(carried)
    )
    new.insertBefore(node)
    new.copyMetadata(node)
    block = new.addBlock()
    for value in [*old.inputs(), *carried]:
        block.addInputToBlock().setType(value.type())
    for value, param in zip(list(old.inputs()), list(block.inputs()), strict=False):
        value.replaceAllUsesWith(param)
    for child in list(old.nodes()):
        child.moveBefore(block.returnNode())
    for value in list(old.outputs()):
        block.registerOutput(value)
    for value, output in zip(
        [*node.outputs(), *carried], list(new.outputs()), strict=True
    ):
        output.setType(value.type())
    ir.replace(node, list(new.outputs())[: node.outputsSize()])
    return new
