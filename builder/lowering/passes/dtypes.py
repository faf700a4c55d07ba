"""Fold queries of dtypes and axes that the graph or the description of its inputs determines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from builder.analysis import Facts
from builder.dtypes import code_of, dtype_of
from builder.graph_types import Graph, Node, NodeList, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.folding import propagate_constants, take_static_branches
from builder.lowering.passes import Context, lowering_pass

_ASKS = (
    "prim::isinstance",
    *(f"aten::{name}" for name in ("dim", "is_floating_point", "__is__", "__isnot__")),
)


@lowering_pass("fold-known-facts", touches=("prim::dtype", *_ASKS, "aten::size"))
def fold_known_facts(graph: Graph, context: Context) -> None:
    """Fold `x.dtype`, `x.dim()`, `x.is_floating_point()`, `x is y` and `isinstance(x, T)` if the
    result is known, and remove branches that are not taken.

    Scripted attention modules have many such queries. With a description of the inputs (`specs`)
    most of them are known.
    """
    for _ in range(_ROUNDS):
        if not context.specs and not ir.nodes_of(graph, "prim::dtype", *_ASKS):
            return
        if not _fold(graph, input_facts(graph, context), context):
            return
        propagate_constants(graph)
        take_static_branches(graph)


# each round resolves branches that the previous round made static; no query is nested deeper
_ROUNDS = 8


def input_facts(graph: Graph, context: Context) -> Facts:
    """The facts of the graph's inputs that the specs state."""
    moves_axes = ir.nodes_of(graph, *context.present(*_IN_PLACE))
    facts = Facts(ranked=not moves_axes)
    for value, spec in zip(graph.inputs(), context.specs, strict=False):
        facts.know(value, getattr(torch, spec.dtype), len(spec.shape))
    return facts


def input_shapes(graph: Graph, context: Context) -> dict[int, tuple[int | str, ...]]:
    """The shapes of the graph's inputs that the specs state, by `Value.unique`."""
    return {
        value.unique(): spec.shape
        for value, spec in zip(graph.inputs(), context.specs, strict=False)
    }


_IN_PLACE = tuple(
    f"aten::{n}_"
    for n in (
        "unsqueeze squeeze transpose t swapaxes swapdims resize resize_as as_strided set".split()
    )
)


def _fold(graph: Graph, facts: Facts, context: Context) -> bool:
    """Replace every query with a known result. Returns whether there was one."""
    is_changed = False
    changes = changes_int_lists(graph)
    for node in bottom_up(graph):
        result = None
        if node.kind() in _QUESTIONS:
            result = _constant(node, facts)
        if result is not None:
            ir.replace(node, [ir.insert_constant(graph, result, node)])
        elif (
            changes
            and node.kind() == "aten::size"
            and _is_copied(node)
            and facts.rank(node.inputsAt(0)) is not None
        ):
            sizes = single_sizes(graph, node, facts.rank(node.inputsAt(0)) or 0)
            ir.replace(node, [Emit(graph, node).ints(sizes)])
        else:
            facts.learn(node)
            continue
        is_changed = True
    return is_changed | (facts.ranked and _fold_sizes(graph, context))


def _is_copied(sizes: Node) -> bool:
    """Whether the sizes of all axes are copied to a list, which may be written (`s =
    list(x.shape)`).
    """
    return bool(sizes.inputsSize() == 1) and any(
        use.user.kind() in _COPIES for use in sizes.output().uses()
    )


_COPIES = frozenset(
    f"aten::{name}" for name in ("list", "copy", "slice", "add", "mul", "len")
)


def changes_int_lists(graph: Graph) -> bool:
    """Whether the graph changes a list of integers in place."""
    return any(
        node.inputsAt(0).type().str() == "int[]"
        for node in ir.nodes_of(graph, *ir.CHANGES)
    )


def single_sizes(graph: Graph, sizes: Node, rank: int) -> list[Value]:
    """Insert one query for each size that the node `sizes` returns. `rank` is their number."""
    emit = Emit(graph, sizes)
    return [
        emit.op("aten::size", sizes.inputsAt(0), axis, type=ir.INT)
        for axis in range(rank)
    ]


def bottom_up(block: NodeList) -> Iterator[Node]:
    """Every node but constants in program order, an If or Loop after the nodes of its blocks."""
    for node in list(block.nodes()):
        if node.kind() == "prim::Constant":
            continue
        for inner in ir.blocks_of(node):
            yield from bottom_up(inner)
        yield node


def _dtype(node: Node, facts: Facts) -> int | None:
    dtype = facts.dtype(node.inputsAt(0))
    return None if dtype is None else code_of(dtype)


def _rank(node: Node, facts: Facts) -> int | None:
    return facts.rank(node.inputsAt(0))


def _is_floating(node: Node, facts: Facts) -> bool | None:
    dtype = facts.dtype(node.inputsAt(0))
    return None if dtype is None else dtype.is_floating_point


def _is(node: Node, facts: Facts) -> bool | None:
    """`x is y` for tensors: the same value is the same tensor, two inputs of the graph are two.
    None is only None.
    """
    first, second = ir.inputs(node)
    kinds = {first.type().kind(), second.type().kind()}
    if "NoneType" in kinds and not kinds & _MAY_BE_NONE and len(kinds) > 1:
        return False
    if first.type().kind() != "TensorType":
        return None
    if second.type().kind() != "TensorType":
        return None
    if first == second:
        return True
    if all(_fresh(value) for value in (first, second)):
        return False
    return None


_MAY_BE_NONE = frozenset(["OptionalType", "UnionType", "AnyType"])


def _is_not(node: Node, facts: Facts) -> bool | None:
    is_same = _is(node, facts)
    if is_same is None:
        return None
    return not is_same


def _fresh(value: Value) -> bool:
    kind = value.node().kind()
    if kind == "prim::Param":
        return value.node().owningBlock().owningNode() is None
    return kind in _NEW_OBJECTS


def _is_instance(node: Node, facts: Facts) -> bool | None:
    """Decide by the value's type. A value of a union type is a tensor or list after the function
    with the query is inlined.
    """
    type_of_value = node.input().type()
    queried = node.tys("types")
    if any(type_of_value.isSubtypeOf(kind) for kind in queried):
        return True
    if any(kind.isSubtypeOf(type_of_value) for kind in queried):
        return None
    return False


_NEW_OBJECTS = frozenset(
    f"aten::{n}"
    for n in ("transpose", "unsqueeze", "linear", "add", "mul", "layer_norm", "permute")
)
_QUESTIONS: dict[str, Callable[[Any, Facts], Any]] = {
    "prim::dtype": _dtype,
    "aten::dim": _rank,
    "aten::is_floating_point": _is_floating,
    "aten::__is__": _is,
    "aten::__isnot__": _is_not,
    "prim::isinstance": _is_instance,
}


def _constant(node: Node, facts: Facts) -> Any:
    return _QUESTIONS[node.kind()](node, facts)


def _fold_sizes(graph: Graph, context: Context) -> bool:
    """Fold the sizes of static axes of the inputs."""
    is_changed = False
    for value, spec in zip(graph.inputs(), context.specs, strict=False):
        queries = [use.user for use in value.uses() if use.user.kind() == "aten::size"]
        for node in queries:
            axis = None
            if node.inputsSize() == 2:
                axis = ir.constant(node.inputsAt(1))
            if (
                isinstance(axis, int)
                and -len(spec.shape) <= axis < len(spec.shape)
                and isinstance(spec.shape[axis], int)
            ):
                ir.replace(node, [ir.insert_constant(graph, spec.shape[axis], node)])
                is_changed = True
    return is_changed


@lowering_pass("remove-casts", touches=("aten::to",))
def remove_casts(graph: Graph, context: Context) -> None:
    """Remove a cast to the dtype that a value already has: a known dtype, or the dtype of the same
    tensor.
    """
    facts = input_facts(graph, context)
    for node in bottom_up(graph):
        facts.learn(node)
        if node.kind() == "aten::to" and _same(node, facts):
            ir.bypass(node)


def _same(node: Node, facts: Facts) -> bool:
    requested = node.inputsAt(1)
    producer = requested.node()
    if producer.kind() == "prim::dtype" and producer.inputsAt(0) == node.inputsAt(0):
        return True
    number = ir.constant(requested)
    dtype = facts.dtype(node.inputsAt(0))
    return dtype is not None and isinstance(number, int) and dtype_of(number) is dtype
