"""Write returned shapes as lists of single sizes, so that their length is known."""

from __future__ import annotations

from collections.abc import Sequence

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes import Context
from builder.lowering.passes.dtypes import (
    bottom_up,
    changes_int_lists,
    input_facts,
    single_sizes,
)

_BUILDERS = frozenset(
    f"prim::{name}"
    for name in ("Return", "TupleConstruct", "ListConstruct", "DictConstruct")
)
_COPIES = frozenset(["aten::slice", "aten::list"])


def list_returned_sizes(graph: Graph, context: Context) -> None:
    """Replace `x.shape`, and slices of it, by lists of single sizes where they are returned and the
    rank of `x` is known.

    A graph that changes lists of integers, or the axes of a tensor in place, is not changed.
    """
    returned = [
        node
        for node in ir.nodes_of(graph, *context.present("aten::size"))
        if node.inputsSize() == 1 and _is_returned(node.output())
    ]
    if not returned or changes_int_lists(graph):
        return
    facts = input_facts(graph, context)
    for node in bottom_up(graph):
        facts.learn(node)
    for node in returned:
        rank = facts.rank(node.inputsAt(0))
        if rank is not None:
            _replace(graph, node, single_sizes(graph, node, rank))


def _is_returned(sizes: Value) -> bool:
    """Whether a list, or a copy of it, may be among the outputs."""
    users = [use.user for use in sizes.uses()]
    return any(
        user.kind() in _BUILDERS
        or (user.kind() in _COPIES and _is_returned(user.output()))
        for user in users
    )


def _replace(graph: Graph, node: Node, sizes: Sequence[Value]) -> None:
    """Replace a list of sizes by a new one, and also its copies."""
    for user in [use.user for use in node.output().uses()]:
        if user.kind() == "aten::list":
            _replace(graph, user, sizes)
        elif user.kind() == "aten::slice":
            bounds = ir.inputs(user)[1:]
            start, end, step = (ir.constant(value) for value in bounds)
            if all(map(ir.is_constant, bounds)) and step > 0:
                _replace(graph, user, sizes[start:end:step])
    ir.replace(node, [Emit(graph, node).ints(sizes)])
