"""Resolve values of enumerations. A file has their class as TorchScript only, so Python cannot read
such a value.
"""

from __future__ import annotations

from builder.errors import LoweringError
from builder.graph_types import Graph, Value
from builder.lowering import ir
from builder.lowering.locations import source_line


def values(graph: Graph) -> list[Value]:
    """The values of enumerations, and the containers of such values, that other nodes read."""
    if "Enum<" not in str(graph):  # far faster than a look at each type
        return []
    return [
        value
        for node in ir.walk(graph)
        for value in ir.outputs(node)
        if "Enum<" in value.type().str() and value.uses()
    ]


def resolve(graph: Graph) -> None:
    """Let torch evaluate the nodes that read them. Raises LoweringError if a value is chosen at run
    time.
    """
    if not values(graph):
        return
    ir.C._jit_pass_constant_propagation_immutable_types(graph)
    ir.C._jit_pass_dce(graph)
    for value in values(graph):
        raise LoweringError(
            "a value of an enumeration is chosen at run time, or held in a list",
            where=source_line(value.node()),
            fix="use numbers or strings in place of the enumeration",
        )
