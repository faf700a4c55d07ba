"""Loops that write memory from outside: that memory becomes a value which the loop carries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.lowering import ir
from builder.lowering.passes.functionalise.alias import Alias
from builder.lowering.passes.functionalise.memory import Memory, cannot
from builder.lowering.passes.functionalise.sharing import holds, sources, writes

if TYPE_CHECKING:
    from builder.lowering.passes.functionalise.walk import Walk


def loop(walk: Walk, node: Any) -> None:
    """Rewrite a loop; each turn starts from the memory that the last one left."""
    memory, inits = walk.memory, ir.inputs(node)[2:]
    roots = _written_roots(memory, node)
    walk.refresh(node, ir.inputs(node))
    node = _with_carried(memory, node, [memory.now(root) for root in roots])
    block, count = next(iter(node.blocks())), len(inits)
    params = list(block.inputs())[1:]
    same = [
        _same_object(value, param)
        for value, param in zip(list(block.outputs())[1:], params, strict=False)
    ]
    for init, param, kept in zip(inits, params, same, strict=False):
        _enter(memory, init, param, kept)
    mark = memory.journal.mark()
    memory.reads.append(set())
    for root, param in zip(roots, params[count:], strict=True):
        memory.renew(root, param)
    returned = walk.block(block, block.returnNode())[1:]
    for root in roots:
        block.registerOutput(memory.now(root))
    memory.reads.pop()
    memory.journal.undo(mark)
    memory.at = node
    outputs = ir.outputs(node)
    for root, output in zip(roots, outputs[count:], strict=True):
        memory.renew(root, output)
    for init, param, kept, value, output in zip(
        inits, params, same, returned, outputs, strict=False
    ):
        _leave(memory, init, param, kept, value, output)


def _enter(memory: Memory, init: Any, param: Any, kept: bool) -> None:
    if kept:
        memory.same(param, memory.alias(init))
    elif holds(param):
        memory.linked(param, [init])


def _leave(memory: Memory, init: Any, param: Any, kept: bool, value: Any, output: Any) -> None:
    if kept:
        memory.same(output, memory.alias(init))
    elif holds(output):
        memory.alias(param).storage.link([memory.alias(value).storage])
        memory.linked(output, [init, param])


def _same_object(value: Any, param: Any) -> bool:
    """Whether a turn hands on the very tensor that it was given, perhaps written in place."""
    while value != param:
        if not writes(value.node()):
            return False
        value = value.node().inputsAt(0)
    return holds(param)


def _written_roots(memory: Memory, node: Any) -> list[Alias]:
    """The memory from outside of a loop that its body writes, found by following each written value
    to where it comes from.
    """
    body = list(ir.walk(next(iter(node.blocks()))))
    targets = [inner.inputsAt(0) for inner in body if writes(inner)]
    if not targets:
        return []
    inside = {v.unique() for inner in body for v in inner.outputs()}
    inside |= {
        v.unique() for owner in [node, *body] for block in owner.blocks() for v in block.inputs()
    }
    found: dict[Alias, None] = {}
    for value in _origins(targets, inside):
        for alias in _with_elements(memory, memory.alias(value)):
            found[_root(memory, node, alias)] = None
    return list(found)


def _origins(targets: list[Any], inside: set[int]) -> list[Any]:
    """The values outside of a loop that any of these may share memory with."""
    outer, seen, left = [], set(), list(targets)
    while left:
        value = left.pop()
        if value.unique() in seen:
            continue
        seen.add(value.unique())
        if value.unique() in inside:
            left.extend(_behind(value))
        else:
            outer.append(value)
    return sorted(outer, key=lambda value: value.unique())


def _behind(value: Any) -> list[Any]:
    """The values that one value inside of a loop may share memory with, one step back."""
    node, at = value.node(), value.offset()
    if node.kind() == "prim::Param":
        return _behind_param(node.owningBlock(), at)
    if node.kind() in ("prim::If", "prim::Loop"):
        skip = node.kind() == "prim::Loop"
        ends = [list(block.outputs())[at + skip] for block in node.blocks()]
        return ends + ([node.inputsAt(at + 2)] if skip else [])
    return [node.inputsAt(0)] if writes(node) else sources(node, ir.inputs(node))


def _behind_param(block: Any, at: int) -> list[Any]:
    """A loop's parameter comes from outside and from the turn before; the first one is the
    counter.
    """
    if at == 0:
        return []
    return [block.owningNode().inputsAt(at + 1), list(block.outputs())[at]]


def _with_elements(memory: Memory, alias: Alias) -> list[Alias]:
    items = alias.items.values() if isinstance(alias.items, dict) else alias.items or ()
    return [
        alias,
        *(
            inner
            for item in items
            if holds(item)
            for inner in _with_elements(memory, memory.alias(item))
        ),
    ]


def _root(memory: Memory, node: Any, alias: Alias) -> Alias:
    """The alias that the loop carries: a tensor's whole memory, or a list of unknown length."""
    if isinstance(alias.items, dict):
        raise cannot(node, "a dictionary changes in a loop whose number of turns is not known")
    if alias.items is not None and alias.current.type().kind() == "ListType":
        memory.forget_items(alias)
        return alias
    return alias.storage.root or alias


def _with_carried(memory: Memory, node: Any, carried: list[Any]) -> Any:
    """A loop like `node` that carries these values as well; `node` itself when there are none."""
    if not carried:
        return node
    old = next(iter(node.blocks()))
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
    for value, output in zip([*node.outputs(), *carried], list(new.outputs()), strict=True):
        output.setType(value.type())
    ir.replace(node, list(new.outputs())[: node.outputsSize()])
    return new
