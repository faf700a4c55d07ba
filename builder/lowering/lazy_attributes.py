"""Attributes that are None in the file, and that forward sets if they are None, such as
`if self.scales is None: self.scales = ...`.

If the value depends on nothing that differs between requests, each call may compute it again. A
value of a size is state: a later call with another size uses that of the first call.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.graph_types import Block, Node, Value
from builder.lowering import ir
from builder.lowering.objects import READ, read_attribute
from builder.reachable import reachable

_FIXED = frozenset({"aten::dim", "prim::dtype", "prim::device"})
"""Operators on tensors whose result is the same for all requests."""


def is_lazy(read: Node, source: object, writes: list[Node]) -> bool:
    """Whether the attribute that a node reads from its owner `source` is None in the file, and all
    `writes` set it only where it or another such attribute is None.
    """
    return _is_none_in_file(read, source) and all(
        _is_guarded(write)
        and not any(map(_is_input, reachable([write.inputsAt(1)], _origins)))
        for write in writes
    )


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


def _is_input(value: Value) -> bool:
    """Whether a value is an input of the graph."""
    node = value.node()
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
