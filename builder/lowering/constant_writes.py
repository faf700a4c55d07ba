"""Whether a graph writes a tensor constant in place."""

from __future__ import annotations

import torch

from builder.graph_types import Graph, Value
from builder.lowering import ir
from builder.lowering.passes.functionalize.sharing import sources, written_inputs
from builder.reachable import reachable


def writes_constant(graph: Graph) -> bool:
    """Whether the graph may write one of its tensor constants. torch assumes that a tensor in a
    list may be any tensor in a list of the graph; here, a tensor that an operator of the graph
    computed is no constant, wherever it is put later.
    """
    aliases = graph.alias_db()
    tensors = [
        node.output()
        for node in ir.nodes_of(graph, "prim::Constant")
        if isinstance(node.output().toIValue(), torch.Tensor)
    ]
    if not any(map(aliases.has_writers, tensors)):
        return False
    return not all(map(is_computed, written_tensors(graph)))


def written_tensors(graph: Graph) -> list[Value]:
    """The tensors that nodes write in place."""
    return [
        node.inputsAt(index)
        for node in ir.walk(graph)
        for index in written_inputs(node)
        if node.inputsAt(index).type().kind() not in ("ListType", "DictType")
    ]


def is_computed(value: Value) -> bool:
    """Whether the memory of a tensor is certainly that of an input of the graph, or of the result
    of an operator.
    """
    return _memory(value) is not None


def are_separate(value: Value, other: Value) -> bool:
    """Whether two tensors are computed and certainly share no memory."""
    memory, others = _memory(value), _memory(other)
    return memory is not None and others is not None and memory.isdisjoint(others)


def _memory(value: Value) -> set[Value] | None:
    """The values that a tensor may share memory with; None if they are not known."""
    values = set(reachable([value], lambda value: _origins(value) or ()))
    return values if all(_origins(value) is not None for value in values) else None


def _origins(value: Value) -> list[Value] | None:
    """The values that a tensor may share memory with; None if they are not known."""
    node = value.node()
    if value.type().kind() not in ("TensorType", "OptionalType") and not (
        _is_fixed_list(value)
    ):
        return None
    if node.kind() == "prim::Param":
        return _origins_of_parameter(value)
    if node.kind() == "prim::If":
        return ir.branch_ends(value)
    if node.kind() == "prim::Loop":
        returned = list(ir.first_block(node).outputs())
        return [node.inputsAt(value.offset() + 2), returned[value.offset() + 1]]
    if node.kind() == "prim::Constant":
        return [] if ir.is_none(value) else None
    if node.kind() not in _PASSED_ON and not node.kind().startswith("aten::"):
        return None
    return sources(node, ir.inputs(node))


_PASSED_ON = ("prim::unchecked_cast", "prim::ListConstruct", "prim::ListUnpack")


def _is_fixed_list(value: Value) -> bool:
    """Whether a value is a list of tensors that only operators read."""
    return value.type().str() == "Tensor[]" and all(
        use.user.kind() == "prim::ListUnpack"
        or (use.user.kind().startswith("aten::") and not written_inputs(use.user))
        for use in value.uses()
    )


def _origins_of_parameter(value: Value) -> list[Value] | None:
    """As `_origins`, for an input of the graph or of the body of a loop."""
    owner = value.node().owningBlock().owningNode()
    if owner is None:
        return []
    if owner.kind() != "prim::Loop":
        return None
    returned = list(ir.first_block(owner).outputs())
    return [owner.inputsAt(value.offset() + 1), returned[value.offset()]]
