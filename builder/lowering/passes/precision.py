"""The pass that applies the precision policy."""

from __future__ import annotations

from builder.graph_types import Graph
from builder.lowering.passes import Context, lowering_pass


@lowering_pass("precision", enabled=lambda context: context.precision is not None)
def precision(graph: Graph, context: Context) -> None:
    """Let the policy write its casts into the graph (`context.precision`); without one, the neutral
    form, nothing changes.
    """
    if context.precision is not None:
        context.precision(graph)
