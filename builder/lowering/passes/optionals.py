"""Optional values that a branch decides by data: a bool for whether each is None."""

from __future__ import annotations

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes import Context, lowering_pass

_CHECKS = ("aten::__is__", "aten::__isnot__")
_CASTS = ("prim::unchecked_cast",)


@lowering_pass("split-optionals", touches=_CHECKS)
def split_optionals(graph: Graph, context: Context) -> None:
    """Replace `y is None` by a bool that the branches return beside y, and a None that they return
    by a value that is never read.

    An Optional is changed only if all its users compare it with None, or read it after such a
    comparison.
    """
    checked = [node.inputsAt(0) for node in ir.nodes_of(graph, *_CHECKS)]
    for value in checked:
        optionals = _Optionals()
        if optionals.collect(value):
            optionals.split(graph)


class _Optionals:
    """The Optional values that a value may be, and those that it may become, by id."""

    def __init__(self) -> None:
        self.values: dict[int, Value] = {}
        self.present: dict[int, Value] = {}

    def collect(self, value: Value) -> bool:
        """Add a value and those that it is connected to. Returns whether all can be split."""
        pending = [value]
        while pending:
            value = pending.pop()
            if value.type().kind() != "OptionalType" or ir.is_none(value):
                continue
            if value.unique() in self.values:
                continue
            self.values[value.unique()] = value
            sources, users = _sources(value), _users(value)
            if sources is None or users is None:
                return False
            pending += [*sources, *users]
        return True

    def split(self, graph: Graph) -> None:
        """Replace the comparisons, then the values."""
        for value in list(self.values.values()):
            for node in [
                use.user for use in value.uses() if use.user.kind() in _CHECKS
            ]:
                self._replace_check(graph, node)
        for value in self.values.values():
            value.setType(value.type().getElementType())
        for value in self.values.values():
            if value.node().kind() == "prim::If":
                self._replace_none(graph, value)
            for node in [use.user for use in value.uses() if use.user.kind() in _CASTS]:
                ir.bypass(node)

    def _replace_check(self, graph: Graph, node: Node) -> None:
        present = self._present(graph, node.inputsAt(0), node)
        if node.kind() == "aten::__is__":
            emit = Emit(graph, node)
            present = emit.op("aten::__not__", present, type=ir.C.BoolType.get())
        ir.replace(node, [present])

    def _replace_none(self, graph: Graph, value: Value) -> None:
        """Return an uninitialized value instead of None."""
        for block in value.node().blocks():
            end = block.returnNode()
            if ir.is_none(end.inputsAt(value.offset())):
                unset = Emit(graph, end).op("prim::Uninitialized", type=value.type())
                end.replaceInput(value.offset(), unset)

    def _present(self, graph: Graph, value: Value, before: Node) -> Value:
        """Whether a value is not None, as a new output of the if that returns it."""
        node = value.node()
        if node.kind() != "prim::If" or value.unique() not in self.values:
            return ir.insert_constant(graph, not ir.is_none(value), before)
        if value.unique() not in self.present:
            flags = []
            for block in node.blocks():
                end = block.returnNode()
                returned = end.inputsAt(value.offset())
                flags.append((block, self._present(graph, returned, end)))
            output = node.addOutput()
            output.setType(ir.C.BoolType.get())
            for block, flag in flags:
                block.registerOutput(flag)
            self.present[value.unique()] = output
        return self.present[value.unique()]


def _sources(value: Value) -> list[Value] | None:
    """The values that an Optional is one of; None if they are not known. Those of a loop must not
    be None.
    """
    node, at = value.node(), value.offset()
    if node.kind() == "prim::Uninitialized":
        return []
    if node.kind() == "prim::If":
        return ir.branch_ends(value)
    if node.kind() == "prim::Param":
        node, at = node.owningBlock().owningNode(), at - 1
    if node is None or node.kind() != "prim::Loop" or at < 0:
        return None
    body = ir.first_block(node)
    following = body.returnNode().inputsAt(at + 1)
    sources = [node.inputsAt(at + 2), following, list(body.inputs())[at + 1]]
    return None if any(map(_may_be_none, sources)) else sources


def _may_be_none(value: Value) -> bool:
    """Whether a value in a loop may be None, as far as it is not one of another loop."""
    if ir.is_none(value):
        return True
    node = value.node()
    if value.type().kind() != "OptionalType" or node.kind() != "prim::If":
        return False
    return any(map(_may_be_none, ir.branch_ends(value)))


def _users(value: Value) -> list[Value] | None:
    """The values that an Optional becomes in ifs and loops; None if it has other users."""
    users: list[Value] = []
    for use in value.uses():
        passed = _passed(use.user, use.offset)
        if passed is None:
            return None
        users += passed
    return users


def _passed(node: Node, at: int) -> list[Value] | None:
    if node.kind() in _CASTS:
        return []
    if node.kind() in _CHECKS:
        return [] if at == 0 and ir.is_none(node.inputsAt(1)) else None
    if node.kind() == "prim::Return":
        owner = node.owningBlock().owningNode()
        if owner is None:
            return None
        return [list(owner.outputs())[at - (owner.kind() == "prim::Loop")]]
    if node.kind() == "prim::Loop":
        return [list(node.outputs())[at - 2]]
    return None
