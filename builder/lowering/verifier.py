"""After every pass: the graph is sound, the pass kept its promises, and nothing lost its place in the source."""

from __future__ import annotations

from typing import Any

from builder.errors import LoweringError
from builder.lowering import ir
from builder.lowering.passes import Pass

Types = tuple[tuple[str, ...], tuple[str, ...]]


class Snapshot:
    """What a pass must preserve: the types of inputs and outputs, the number of nodes, and which nodes were there."""

    def __init__(self, graph: Any) -> None:
        self.types: Types = (_types(graph.inputs()), _types(graph.outputs()))
        self.nodes = 0
        self.newest = -1
        for node in ir.walk(graph):
            self.nodes += node.kind() != "prim::Constant"
            for value in node.outputs():
                self.newest = max(self.newest, value.unique())


def _types(values: Any) -> tuple[str, ...]:
    """Tensors without shapes: a pass may learn one, or forget it."""
    return tuple("Tensor" if v.type().kind() == "TensorType" else v.type().str() for v in values)


def verify(graph: Any, step: Pass, before: Snapshot) -> Snapshot:
    """The snapshot after a pass; a LoweringError that names the pass when it broke the graph, its interface or its
    promise."""
    try:
        graph.lint()
    except RuntimeError as error:
        raise _broken(step, f"the graph does not lint: {error}") from error
    after = Snapshot(graph)
    if not step.changes_interface and after.types != before.types:
        raise _broken(step, f"inputs or outputs changed from {before.types} to {after.types}")
    for kind in step.removes:
        if left := graph.findNode(kind, True):
            raise _broken(step, f"{kind} is left", where=ir.source_line(left))
    if after.newest > before.newest:
        _check_ranges(graph, step, before.newest)
    return after


def _check_ranges(graph: Any, step: Pass, newest: int) -> None:
    """Operators that a pass inserted have a place in the source, if those beside them have one.

    A node that torch's own rewriters made without one takes the place of the node that feeds it.
    """
    for node in ir.walk(graph):
        made = node.outputsSize() and node.outputsAt(0).unique() > newest and node.kind().startswith("aten::")
        if made and not node.sourceRange():
            if feeder := next((v.node() for v in node.inputs() if v.node().sourceRange()), None):
                node.copyMetadata(feeder)
            if step.ours and feeder:
                raise _broken(step, f"{node.kind()} has lost its place in the source", where=ir.source_line(feeder))


def _broken(step: Pass, what: str, where: str | None = None) -> LoweringError:
    return LoweringError(f"pass {step.name} is defective: {what}", where=where, fix="report it with the model file")
