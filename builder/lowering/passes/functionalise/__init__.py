"""Functionalisation: no operator writes memory that another value may see."""

from __future__ import annotations

from builder.graph_types import Graph
from builder.lowering import ir
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.functionalise.containers import BUILDERS
from builder.lowering.passes.functionalise.sharing import writes
from builder.lowering.passes.functionalise.walk import Walk


@lowering_pass("functionalise")
def functionalise(graph: Graph, context: Context) -> None:
    """Replace every in-place write by a new value, and let later readers of that memory read it.

    Slice assignment, `copy_`, `fill_`, `zero_`, `index_put_`, `masked_fill_`, `scatter_`, every
    operator with a functional twin (which keeps the dtype of the tensor that was written), and the
    changes of lists and dictionaries. A write to a view is a write to what it views, and to its
    other views; a write in a branch or a loop becomes an output of it. Where it cannot be
    determined which values share the memory, and it is read later, a LoweringError names the source
    line.
    """
    if any(writes(node) or node.kind() in BUILDERS for node in ir.walk(graph)):
        Walk(graph, context.unroll_limit).run()
