"""After every pass: the graph is sound, the pass kept its promises, and nothing lost its place in the source."""

from __future__ import annotations

import re
from typing import Any

from builder.errors import LoweringError
from builder.lowering import ir
from builder.lowering.passes import Pass
from builder.lowering.scoping import out_of_scope

Types = tuple[tuple[str, ...], tuple[str, ...]]


_NODE = re.compile(r"^ +(?:%.*)?= (?!prim::Constant\b)\w+::\w+", re.MULTILINE)
_WITHOUT_PLACE = re.compile(r"^ +%[^#\n]*= aten::[^#\n]*$", re.MULTILINE)


class Snapshot:
    """What a pass must preserve: the types of inputs and outputs, the number of nodes, how many operators have no
    place in the source.

    All of it is read from the graph's text, which torch writes many times faster than Python walks a graph.
    """

    def __init__(self, graph: Any) -> None:
        self.text = str(graph)
        self.types: Types = (_types(graph.inputs()), _types(graph.outputs()))
        self.nodes = len(_NODE.findall(self.text))
        self.without_place = len(_WITHOUT_PLACE.findall(self.text))


_TENSOR = re.compile(r"\b(?:Float|Double|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)\([^()]*\)")


def _types(values: Any) -> tuple[str, ...]:
    """Tensors without shapes, in tuples as well: a pass may learn a shape, or forget it."""
    return tuple("Tensor" if v.type().kind() == "TensorType" else _TENSOR.sub("Tensor", v.type().str()) for v in values)


def verify(graph: Any, step: Pass, before: Snapshot) -> Snapshot:
    """The snapshot after a pass; a LoweringError that names the pass when it broke the graph, its interface or its
    promise.
    """
    if str(graph) == before.text:
        _check_promise(graph, step)
        return before
    after = Snapshot(graph)
    _lint(graph, step, after)
    if not step.changes_interface and after.types != before.types:
        raise _broken(step, f"inputs or outputs changed from {before.types} to {after.types}")
    _check_promise(graph, step)
    if after.without_place <= before.without_place:
        return after
    if not step.ours:
        return _give_places(graph)
    if not before.without_place:  # what replaces a node without a place has none to inherit
        raise _broken(step, "an operator that it inserted has lost its place in the source")
    return after


def _lint(graph: Any, step: Pass, after: Snapshot) -> None:
    if unknown := out_of_scope(after.text):
        raise _broken(step, f"a value is read where nobody made it: {unknown}")
    if after.nodes > _LINT_UP_TO:
        return
    try:
        graph.lint()
    except RuntimeError as error:
        raise _broken(step, f"the graph does not lint: {error}") from error


# torch's lint is quadratic in the uses of a shared constant; above this the linear check of scopes stands alone.
_LINT_UP_TO = 400


def _check_promise(graph: Any, step: Pass) -> None:
    for kind in step.removes:
        if left := graph.findNode(kind, True):
            raise _broken(step, f"{kind} is left", where=ir.source_line(left))


def _give_places(graph: Any) -> Snapshot:
    """torch's own rewriters make operators without a place in the source: they take that of a node that feeds them."""
    for node in ir.walk(graph):
        if node.kind().startswith("aten::") and not node.sourceRange():
            feeder = next((v.node() for v in node.inputs() if v.node().sourceRange()), None)
            if feeder is not None:
                node.copyMetadata(feeder)
    return Snapshot(graph)


def _broken(step: Pass, what: str, where: str | None = None) -> LoweringError:
    return LoweringError(f"pass {step.name} is defective: {what}", where=where, fix="report it with the model file")
