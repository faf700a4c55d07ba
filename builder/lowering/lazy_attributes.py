"""Attributes that are None in the file, and that forward sets if they are None, such as
`if self.scales is None: self.scales = ...`.

If the value depends on nothing that differs between requests, each call may compute it again. A
value of a size is state: a later call with another size uses that of the first call. So is a random
value, and one that is written in place: a later call starts with the written one.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.graph_types import Block, Graph, Node, Value
from builder.lowering import ir
from builder.lowering.objects import READ, read_attribute
from builder.lowering.passes.functionalize.origins import origins, stores
from builder.lowering.passes.functionalize.sharing import holds, written_inputs
from builder.reachable import reachable

_FIXED = frozenset({"aten::dim", "prim::dtype", "prim::device"})
"""Operators on tensors whose result is the same for all requests."""


def is_lazy(graph: Graph, read: Node, source: object, writes: list[Node]) -> bool:
    """Whether the attribute that a node reads from its owner `source` is None in the file, and all
    `writes` set it only where it or another such attribute is None, to a value that each call
    computes equally and that nothing changes afterwards.
    """
    return (
        _is_none_in_file(read, source)
        and all(
            _is_guarded(write)
            and not any(map(_is_varying, reachable([write.inputsAt(1)], _origins)))
            for write in writes
        )
        and not _may_change(graph, writes)
    )


def _may_change(graph: Graph, writes: list[Node]) -> bool:
    """Whether a node may write one of the values that `writes` store in place: with an input of the
    graph, or outside the branch that computes the value.
    """
    nodes = list(ir.walk(graph))
    inside = {value.unique() for node in nodes for value in _defined(node)}
    items = [v for node in nodes if stores(node) for v in node.inputs() if holds(v)]
    lazy = {(write.inputsAt(0).type().str(), write.s("name")) for write in writes}
    values = [write.inputsAt(1) for write in writes]
    values += [node.output() for node in nodes if _key(node) in lazy]
    memory = origins(values, inside, items).keys
    branches = [write.owningBlock() for write in writes]
    return any(
        not origins([node.inputsAt(index)], inside, items).keys.isdisjoint(memory)
        and not (node.owningBlock() in branches and not _reads_input(node))
        for node in nodes
        for index in written_inputs(node)
    )


def _defined(node: Node) -> Iterator[Value]:
    yield from node.outputs()
    for block in ir.blocks_of(node):
        yield from block.inputs()


def _key(node: Node) -> tuple[str, str] | None:
    """The class of the owner and the name of the attribute that a node reads."""
    if node.kind() != READ:
        return None
    return node.inputsAt(0).type().str(), node.s("name")


def _reads_input(node: Node) -> bool:
    return any(_depends_on_input(value, set()) for value in node.inputs())


def _is_none_in_file(read: Node, source: object) -> bool:
    if read.output().type().kind() != "OptionalType":
        return False
    try:
        return read_attribute(source, read) is None
    except RuntimeError:  # Python does not know the class of the object
        return False


def _is_guarded(write: Node) -> bool:
    """Whether a write is in the first block of an if that compares only attributes with None."""
    guard = write.owningBlock().owningNode()
    if guard is None or guard.kind() != "prim::If":
        return False
    return write.owningBlock() == ir.first_block(guard) and _is_guard(guard.inputsAt(0))


def _is_guard(condition: Value) -> bool:
    """Whether a condition is `a is None`, or `a is None or b is None`."""
    node = condition.node()
    if node.kind() == "aten::__is__":
        return node.inputsAt(0).node().kind() == READ and ir.is_none(node.inputsAt(1))
    if node.kind() != "prim::If" or not _is_guard(node.inputsAt(0)):
        return False
    first, second = ir.branch_ends(condition)
    return ir.constant(first) is True and _is_guard(second)


def _is_varying(value: Value) -> bool:
    """Whether a value is an input of the graph, or random."""
    node = value.node()
    if node.isNondeterministic():
        return True
    return (
        node.kind() == "prim::Param"
        and node.owningBlock().owningNode() is None
        and value.type().kind() != "ClassType"
    )


def _origins(value: Value) -> Iterator[Value]:
    """The values that a value is computed from, without those of which only a fixed property is
    read.
    """
    node = value.node()
    if node.kind() == "prim::Param":
        node = node.owningBlock().owningNode()
    if node is None or node.kind() in _FIXED:
        return
    yield from node.inputs()
    for block in ir.blocks_of(node):
        yield from block.outputs()
    is_created = value.node().kind() == "prim::CreateObject"
    if is_created or value.type().kind() in ("ListType", "DictType"):
        for use in value.uses():
            yield from use.user.inputs()
            yield from _conditions(use.user.owningBlock())


def _conditions(block: Block) -> Iterator[Value]:
    """The values that decide whether, and how often, a block runs."""
    owner = block.owningNode()
    while owner is not None:
        yield from ir.inputs(owner)[: 1 if owner.kind() == "prim::If" else 2]
        owner = owner.owningBlock().owningNode()
