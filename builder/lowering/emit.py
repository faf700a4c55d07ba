"""Emit: the builder with which passes insert nodes into a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from builder.decompositions import graph_of_function
from builder.graph_types import Graph, Node, Type, Value
from builder.lowering import ir


class Emit:
    """Inserts nodes before `at`, with the source location of `origin` (default: that of `at`).
    Constants come from `shared`, if passed.
    """

    def __init__(
        self,
        graph: Graph,
        at: Node,
        origin: Node | None = None,
        shared: ir.Constants | None = None,
    ) -> None:
        self.graph = graph
        self.at = at
        self.origin = origin or at
        self.shared = shared

    def constant(self, value: object) -> Value:
        """A constant: a number, a string, None or a list of them."""
        if self.shared is not None:
            return self.shared(value)
        return ir.insert_constant(self.graph, value, self.at, self.origin)

    def op(self, kind: str, *args: object, type: Type | None = None) -> Value:
        """One operator with one output (a tensor unless `type` is given); Python arguments
        become constants.
        """
        values = [
            arg if isinstance(arg, ir.C.Value) else self.constant(arg) for arg in args
        ]
        types = [type] if type else ()
        return ir.insert(self.graph, kind, values, self.at, types, self.origin).output()

    def call(self, function: Callable[..., object], *values: Value) -> Value:
        """The result of a Python function of tensors and numbers, as nodes."""
        body: Any = graph_of_function(function)
        with ir.inserting(self.graph, self.at):
            (result,) = self.graph.insertGraph(body, values)
        return result

    def list(self, values: Sequence[Value], element: Type) -> Value:
        """A list built of values."""
        return ir.insert(
            self.graph, "prim::ListConstruct", values, self.at, [ir.C.ListType(element)]
        ).output()

    def ints(self, items: Sequence[Value | int]) -> Value:
        """A list of integers, each a value or a Python int."""
        return self.list(
            [self.constant(item) if isinstance(item, int) else item for item in items],
            ir.INT,
        )

    def size(self, tensor: Value) -> Value:
        """All sizes of a tensor."""
        return self.op("aten::size", tensor, type=ir.C.ListType.ofInts())
