"""Loops with a known trip count, and ifs with a known condition."""

from __future__ import annotations

from collections.abc import Sequence

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.folding import (
    eliminate_dead_code,
    propagate_constants,
    take_static_branches,
)
from builder.lowering.locations import source_range
from builder.lowering.passes import Context, lowering_pass


@lowering_pass("unroll-loops", touches=("prim::Loop",))
def unroll_loops(graph: Graph, context: Context) -> None:
    """Repeat the body of a loop for each iteration, if the trip count is known and at most
    `unroll_limit`.

    An outer loop is unrolled first: the trip count of an inner loop may depend on its counter,
    which is then a constant.
    """
    while loops := [
        node
        for node in ir.nodes_of(graph, "prim::Loop")
        if trip_count(node, context.unroll_limit) is not None
    ]:
        for node in _outermost(loops):
            unroll(graph, node, trip_count(node, context.unroll_limit) or 0)
        propagate_constants(graph)
        ir.C._jit_pass_peephole_list_idioms(graph, refine_list_len=True)
        eliminate_dead_code(graph)


def trip_count(node: Node, limit: int) -> int | None:
    """The trip count of a loop if it is known and within the limit, and the loop cannot end
    earlier.
    """
    count = ir.constant(node.inputsAt(0))
    start = ir.constant(node.inputsAt(1))
    continues = ir.constant(next(iter(ir.first_block(node).outputs())))
    if start is False:
        return 0
    if start is True and count is not None:
        counted = _counted(node)
        if counted is not None:
            count, continues = min(counted, count), True
    if count is None or start is not True or continues is not True or count > limit:
        return None
    return max(int(count), 0)


def _counted(loop: Node) -> int | None:
    """The trip count of a loop that ends only when a carried number, which grows by 1, reaches a
    constant: torch writes `for` with `continue` or a list in this way.
    """
    body = ir.first_block(loop)
    continues, *following = body.outputs()
    compared = continues.node()
    if compared.kind() == "aten::__and__" and ir.constant(compared.inputsAt(1)) is True:
        compared = compared.inputsAt(0).node()
    if compared.kind() != "aten::lt" or compared.owningBlock() != body:
        return None
    number, bound = ir.inputs(compared)
    _, *parameters = body.inputs()
    for parameter, value, start in zip(
        parameters, following, ir.inputs(loop)[2:], strict=True
    ):
        if value.unique() == number.unique() and _next_of(value, parameter):
            ends = ir.constant(start), ir.constant(bound)
            if all(type(end) is int for end in ends):
                return max(int(ends[1] - ends[0]), 1)
    return None


def _next_of(value: Value, number: Value) -> bool:
    """Whether a value is number + 1."""
    node = value.node()
    return (
        node.kind() == "aten::add"
        and node.inputsAt(0).unique() == number.unique()
        and ir.constant(node.inputsAt(1)) == 1
    )


def _outermost(loops: list[Node]) -> list[Node]:
    return [node for node in loops if not any(_inside(node, loop) for loop in loops)]


def _inside(node: Node, loop: Node) -> bool:
    block = node.owningBlock()
    while block.owningNode() is not None:
        if block.owningNode() == loop:
            return True
        block = block.owningNode().owningBlock()
    return False


def unroll(graph: Graph, node: Node, count: int) -> None:
    """Replace a loop by one copy of its body for each iteration."""
    carried = ir.inputs(node)[2:]
    for iteration in range(count):
        counter = ir.insert_constant(graph, iteration, node)
        _, *carried = copy_body(graph, node, counter, carried)
    ir.replace(node, carried)


def copy_body(
    graph: Graph, loop: Node, counter: Value, carried: Sequence[Value]
) -> list[Value]:
    """Copy the body of a loop before the loop, with these values of its counter and of what it
    carries. Returns its results: whether the loop continues, and what it carries then.
    """
    body = ir.first_block(loop)
    pairs = zip(body.inputs(), (counter, *carried), strict=True)
    values = {parameter.unique(): value for parameter, value in pairs}
    for child in body.nodes():
        copy = graph.createClone(
            child, lambda value, values=values: values.get(value.unique(), value)
        )
        copy.insertBefore(loop)
        _locate(copy, child, loop)
        values |= {
            old.unique(): new
            for old, new in zip(child.outputs(), copy.outputs(), strict=True)
        }
    return [values.get(value.unique(), value) for value in body.outputs()]


def _locate(copy: Node, child: Node, loop: Node) -> None:
    """Give each copy the source location of its original. A node without one gets that of the
    loop.
    """
    ir.adopt(copy, child)
    for node in [copy, *(inner for block in copy.blocks() for inner in ir.walk(block))]:
        if not source_range(node):
            node.copyMetadata(loop)


@lowering_pass("resolve-static-ifs", touches=("prim::If",))
def resolve_static_ifs(graph: Graph, context: Context) -> None:
    """Replace an if with a constant condition by the branch that is taken."""
    take_static_branches(graph)
