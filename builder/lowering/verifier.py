"""Checks after every pass: the graph is valid, the pass kept its promises, and all nodes have a
source location.
"""

from __future__ import annotations

import re
from collections import Counter
from operator import attrgetter
from typing import Any

from builder.errors import LoweringError
from builder.graph_types import Graph
from builder.lowering import ir
from builder.lowering.locations import source_line, source_range
from builder.lowering.passes import Pass
from builder.lowering.scoping import Lines, out_of_scope

Types = tuple[tuple[str, ...], tuple[str, ...]]


class Snapshot:
    """Properties of a graph around a pass: the types of inputs and outputs, the number of nodes of
    each kind, and of operators without a source location.

    They are read from the graph's text, which torch prints much faster than Python walks a graph.
    `known` are the lines that earlier snapshots of this graph parsed.
    """

    def __init__(
        self, graph: Graph, parsed: Lines | None = None, text: str | None = None
    ) -> None:
        self.parsed = Lines() if parsed is None else parsed
        self.text = str(graph) if text is None else text
        self.lines = list(map(self.parsed.__getitem__, self.text.splitlines()))
        self.types: Types = (_types(graph.inputs()), _types(graph.outputs()))
        self.kinds = Counter(map(attrgetter("kind"), self.lines))
        self.nodes = len(self.lines) - self.kinds["prim::Constant"] - self.kinds[""]
        self.without_location = sum(map(attrgetter("without_location"), self.lines))

    @classmethod
    def after(cls, graph: Any, before: Snapshot | None) -> Snapshot:
        """The snapshot of a graph after `before`; `before` itself if the text is unchanged."""
        text = str(graph)
        if before is None:
            return cls(graph, None, text)
        if text == before.text:
            return before
        return cls(graph, before.parsed, text)


_TENSOR = re.compile(
    r"\b(?:Float|Double|Half|BFloat16|Long|Int|Short|Char|Byte|Bool)\([^()]*\)"
)


def _types(values: Any) -> tuple[str, ...]:
    """The types without tensor shapes, also inside tuples: a pass may add or remove a shape."""
    types = []
    for value in values:
        if value.type().kind() == "TensorType":
            types.append("Tensor")
        else:
            types.append(_TENSOR.sub("Tensor", value.type().str()))
    return tuple(types)


def _same_types(before: Types, after: Types) -> bool:
    """Whether types are equal up to refinement by a pass: an Optional value may be known to be
    None, or not None.
    """
    inputs, outputs = before
    return (
        after[0] == inputs
        and len(after[1]) == len(outputs)
        and all(map(_narrows, outputs, after[1]))
    )


def _narrows(before: str, after: str) -> bool:
    if before == after:
        return True
    pattern = re.sub(r"(\w+)\\\?", r"(?:\1\\?|\1|NoneType)", re.escape(before))
    return re.fullmatch(pattern, after) is not None


def verify(graph: Graph, step: Pass, before: Snapshot) -> Snapshot:
    """The snapshot after a pass. Raises LoweringError with the pass's name if it broke the graph,
    its interface or its promise.
    """
    after = Snapshot.after(graph, before)
    if after is before:
        _check_promise(graph, step, before)
        return before
    _lint(graph, step, after)
    if not step.changes_interface and not _same_types(before.types, after.types):
        raise _broken(
            step, f"inputs or outputs changed from {before.types} to {after.types}"
        )
    _check_promise(graph, step, after)
    if after.without_location <= before.without_location:
        return after
    if not step.builtin:
        return _give_locations(graph, before.parsed)
    # The replacement of a node without a location has none to inherit.
    if not before.without_location and " # " in before.text:
        raise _broken(step, "an operator that it inserted has no source location")
    return after


def _lint(graph: Graph, step: Pass, after: Snapshot) -> None:
    if unknown := out_of_scope(after.lines):
        raise _broken(step, f"a value is read outside its scope: {unknown}")
    if after.nodes > _LINT_UP_TO:
        return
    try:
        graph.lint()
    except RuntimeError as error:
        raise _broken(step, f"the graph does not lint: {error}") from error


# torch's lint is quadratic in the uses of a shared constant. Above this limit only the linear scope
# check runs.
_LINT_UP_TO = 400


def _check_promise(graph: Graph, step: Pass, after: Snapshot) -> None:
    for kind in step.removes:
        if after.kinds[kind]:
            raise _broken(
                step, f"{kind} is left", where=source_line(graph.findNode(kind))
            )


def _give_locations(graph: Graph, parsed: Lines) -> Snapshot:
    """Give operators that torch's rewriters created without a source location that of a
    producer.
    """
    for node in ir.walk(graph):
        if node.kind().startswith("aten::") and not source_range(node):
            for value in node.inputs():
                if source_range(value.node()):
                    node.copyMetadata(value.node())
                    break
    return Snapshot(graph, parsed)


def _broken(step: Pass, problem: str, where: str | None = None) -> LoweringError:
    return LoweringError(
        f"pass {step.name} is defective: {problem}",
        where=where,
        fix="report it with the model file",
    )
