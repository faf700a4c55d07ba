"""Passes that call torch's own rewriters, so that these are named, traced and verified like all
passes.
"""

from __future__ import annotations

from collections.abc import Iterator

from builder.errors import LoweringError
from builder.graph_types import Graph, Node
from builder.lowering import folding, ir
from builder.lowering.ir import C
from builder.lowering.locations import located, source_line
from builder.lowering.passes import Context, lowering_pass, tuples

_CALLS = ("prim::CallFunction", "prim::CallMethod")


@lowering_pass("inline", removes=_CALLS, builtin=False, touches=_CALLS)
def inline(graph: Graph, context: Context) -> None:
    """Inline every call of a function or method."""
    C._jit_pass_inline(graph)


def _unread(context: Context) -> bool:
    return context.lines is None or folding.unread(context.lines)


def _foldable(context: Context) -> bool:
    return context.lines is None or folding.foldable(context.lines)


@lowering_pass("eliminate-dead-code", builtin=False, enabled=_unread)
def eliminate_dead_code(graph: Graph, context: Context) -> None:
    """Remove nodes without users. A node with side effects stays."""
    C._jit_pass_dce(graph)


@lowering_pass("propagate-constants", builtin=False, enabled=_foldable)
def propagate_constants(graph: Graph, context: Context) -> None:
    """Compute nodes that depend only on constants, and resolve ifs whose condition became static.

    Quantization of a constant is kept, because the engine's int8 weights are computed from it.
    """
    folding.propagate_constants(graph, context.kinds)


_LIST_READERS = (
    "aten::__getitem__",
    "aten::len",
    "aten::slice",
    "aten::add",
    "prim::ListUnpack",
)


@lowering_pass("peephole-lists", builtin=False, touches=_LIST_READERS)
def peephole_lists(graph: Graph, context: Context) -> None:
    """Fold reads of lists that the graph builds: `[a, b][1]` is `b`, `len([a, b])` is 2."""
    of_lists = context.present("aten::__getitem__", "aten::len", "prim::ListUnpack")
    if of_lists or any(
        map(
            _gives_list,
            ir.nodes_of(graph, *context.present("aten::slice", "aten::add")),
        )
    ):
        C._jit_pass_peephole_list_idioms(graph, refine_list_len=True)


def _gives_list(node: Node) -> bool:
    return bool(node.output().type().kind() == "ListType")


TUPLES = (
    "prim::TupleConstruct",
    "prim::TupleUnpack",
    "prim::TupleIndex",
    "prim::TupleSlice",
)


@lowering_pass("lower-tuples-of-torch", builtin=False)
def lower_tuples_of_torch(graph: Graph, context: Context) -> None:
    """As lower-tuples, for a graph that torch runs: tuples in lists and dictionaries stay."""
    if _of_container(graph) is None:
        lower_tuples.rewrite(graph, context)


def _of_container(graph: Graph) -> tuple[Node, str] | None:
    """A node that selects a tuple from a list or an Optional, or puts one into a container, and its
    description; None if there is none. Removes containers without users.
    """
    if next(_in_containers(graph), None) is None:
        return None
    C._jit_pass_dce(graph)
    return next(_in_containers(graph), None)


def _in_containers(graph: Graph) -> Iterator[tuple[Node, str]]:
    for node in ir.nodes_of(graph, "aten::__getitem__"):
        if node.output().type().kind() == "TupleType":
            yield node, "a tuple is selected from a list at run time"
    for node in ir.nodes_of(graph, "prim::unchecked_cast", "aten::_unwrap_optional"):
        if node.output().type().kind() == "TupleType":
            yield node, "a tuple that may be None is read"
    for node in ir.nodes_of(graph, "prim::TupleConstruct"):
        for use in node.output().uses():
            if use.user.kind() in _CONTAINERS or use.user.kind().startswith("aten::"):
                yield located(node.output()), _TUPLES_IN_CONTAINER


_TUPLES_IN_CONTAINER = (
    "a list or dictionary whose content is known only at run time has tuples"
)
_CONTAINERS = ("prim::ListConstruct", "prim::DictConstruct")


@lowering_pass(
    "lower-tuples",
    removes=TUPLES,
    builtin=False,
    touches=(*TUPLES, "prim::Constant"),  # a constant may be a tuple
)
def lower_tuples(graph: Graph, context: Context) -> None:
    """Replace every tuple by its elements, through ifs and loops.

    A tuple in a container whose content is known only at run time has no known elements, nor has a
    tuple that may be None. Torch cannot lower it: a LoweringError names the line.
    """
    in_container = _of_container(graph)
    if in_container is not None:
        node, problem = in_container
        raise LoweringError(
            problem,
            where=source_line(node),
            fix="use a constant index or key, a loop with a fixed trip count, or one variable for"
            " each element",
        )
    tuples.split(graph)
    C._jit_pass_lower_all_tuples(graph)
    ir.split_uninitialized(graph)
