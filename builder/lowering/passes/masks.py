"""Replace boolean-mask indexing by `where`, so that no size depends on the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from builder.analysis import Facts
from builder.dtypes import code_of, dtype_of
from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.dtypes import bottom_up, input_facts


@dataclass(frozen=True)
class Picked:
    """The elements that a mask selects from `whole`, whose first axes are those of the mask. `rank`
    is the rank of `whole`.
    """

    mask: Any
    whole: Any
    rank: int


@lowering_pass("masks-to-where", touches=("aten::index", "aten::index_put"))
def masks_to_where(graph: Graph, context: Context) -> None:
    """Rewrite `y[mask] = f(x[mask])` to `where(mask, f(x), y)`, and `f(x[mask]).sum()` to the sum
    of `where(mask, f(x), 0)`, for element-wise f. The positions of `torch.where(mask)` are replaced
    by the mask first, where its sizes are certainly those of x.

    The number of elements that a mask selects depends on the data, and TensorRT for RTX has no
    kernel that finds them.
    """
    facts = input_facts(graph, context)
    picked = dict[int, Picked]()
    for node in bottom_up(graph):
        facts.learn(node)
        if ir.in_fallback(node):
            continue
        if node.kind() in ("aten::index", "aten::index_put"):
            _index_by_mask(graph, node, facts)
        if node.kind() == "aten::index":
            selection = _picks(node, facts)
        elif node.kind() in _POINTWISE or (
            node.kind() == "aten::div" and node.inputsSize() == 2
        ):
            selection = _computed(graph, node, facts, picked)
        else:
            selection = None
            _rewrite_user(graph, node, facts, picked)
        if selection is not None:
            picked[node.output().unique()] = selection


def _index_by_mask(graph: Graph, node: Node, facts: Facts) -> None:
    """Replace indices that are all the positions of a mask by the mask."""
    whole, indices = ir.inputs(node)[:2]
    items = ir.list_items(indices) or []
    lists = {_list_with(item, i) for i, item in enumerate(items)}
    positions = lists.pop() if len(lists) == 1 else None
    if positions is None:
        return
    source = positions.node()
    if source.kind() not in _POSITIONS or source.inputsSize() != 1:
        return
    mask = source.inputsAt(0)
    is_mask = facts.dtype(mask) == torch.bool and facts.rank(mask) == len(items)
    if is_mask and _has_sizes_of(mask, whole, facts):
        masks = Emit(graph, node).op("prim::ListConstruct", mask, type=indices.type())
        node.replaceInput(1, masks)


def _list_with(item: Any, index: int) -> Any | None:
    """The list whose element at the index is the item."""
    node: Any = item.node() if isinstance(item, torch._C.Value) else None
    if node is None or node.kind() not in ("prim::ListUnpack", "aten::__getitem__"):
        return None
    if node.kind() == "prim::ListUnpack":
        is_at_index = list(node.outputs()).index(item) == index
    else:
        is_at_index = ir.constant(node.inputsAt(1)) == index
    return node.inputsAt(0) if is_at_index else None


def _has_sizes_of(mask: Value, whole: Value, facts: Facts) -> bool:
    """Whether the mask is certainly computed from `whole`, element by element or by reductions of
    its last axis. The positions of a smaller mask are valid indices, but that mask is not.
    """
    if facts.rank(whole) is None:
        return False
    while mask != whole:
        node = mask.node()
        reduced = node.kind() in _REDUCTIONS and _reduces_last_axis(node, facts)
        if not reduced and node.kind() not in _POINTWISE:
            return False
        tensors = [v for v in node.inputs() if v.type().kind() == "TensorType"]
        if not tensors or any(facts.rank(value) != 0 for value in tensors[1:]):
            return False
        mask = tensors[0]
    return True


def _reduces_last_axis(node: Node, facts: Facts) -> bool:
    if node.inputsSize() < 3:
        return False
    rank = facts.rank(node.inputsAt(0))
    dims, keepdim = (ir.constant(node.inputsAt(i)) for i in (1, 2))
    last = (-1, [-1]) if rank is None else (-1, [-1], rank - 1, [rank - 1])
    return dims in last and keepdim is False


def _mask(indices: Value, facts: Facts) -> Any | None:
    """The mask, if it is the only index in the list."""
    items = ir.list_items(indices) or []
    is_only_index = len(items) == 1 and isinstance(items[0], torch._C.Value)
    if is_only_index and facts.dtype(items[0]) == torch.bool and facts.rank(items[0]):
        return items[0]
    return None


def _picks(node: Node, facts: Facts) -> Picked | None:
    x, indices = ir.inputs(node)
    mask = _mask(indices, facts)
    rank = facts.rank(x)
    if mask is None or rank is None:
        return None
    return Picked(mask, x, rank)


def _computed(
    graph: Graph, node: Node, facts: Facts, picked: dict[int, Picked]
) -> Picked | None:
    """Apply a computation on selected elements and numbers to all elements."""
    parts = [
        picked[value.unique()] for value in node.inputs() if value.unique() in picked
    ]
    if not parts:
        return None
    mask = parts[0].mask
    rank = parts[0].rank
    if any(part.mask != mask or part.rank != rank for part in parts):
        return None
    others = [
        value
        for value in node.inputs()
        if value.unique() not in picked and value.type().kind() == "TensorType"
    ]
    if any(facts.rank(value) != 0 for value in others):
        return None
    values = []
    for value in node.inputs():
        if value.unique() in picked:
            value = picked[value.unique()].whole
        values.append(value)
    whole = Emit(graph, node).op(node.kind(), *values)
    facts.learn(whole.node())
    return Picked(mask, whole, rank)


def _rewrite_user(
    graph: Graph, node: Node, facts: Facts, picked: dict[int, Picked]
) -> None:
    """Rewrite a node that reads selected elements to read all elements, if possible."""
    selections = [value for value in node.inputs() if value.unique() in picked]
    if len(selections) != 1 or node.kind() not in _ENDS:
        return
    rewrite = _ENDS[node.kind()]
    new = rewrite(Emit(graph, node), node, facts, picked[selections[0].unique()])
    if new is not None:
        facts.know(new, facts.dtype(node.output()), facts.rank(node.output()))
        ir.replace(node, [new])


def _put(emit: Emit, node: Node, facts: Facts, values: Picked) -> Any | None:
    base, indices, _, accumulate = ir.inputs(node)
    if (
        _mask(indices, facts) != values.mask
        or facts.rank(base) != values.rank
        or ir.constant(accumulate) is not False
    ):
        return None
    return emit.op(
        "aten::where", _unsqueezed_mask(emit, facts, values), values.whole, base
    )


def _summed(emit: Emit, node: Node, facts: Facts, values: Picked) -> Any | None:
    if node.inputsSize() != 2:
        return None  # along some axes
    return emit.op("aten::sum", _or_zero(emit, facts, values), node.inputsAt(1))


def _averaged(emit: Emit, node: Node, facts: Facts, values: Picked) -> Any | None:
    if node.inputsSize() != 2 or facts.rank(values.mask) != values.rank:
        return None
    if ir.is_none(node.inputsAt(1)):
        dtype = facts.dtype(values.whole)
    else:
        dtype = dtype_of(ir.constant(node.inputsAt(1)) or -1)
    if dtype is None:
        return None
    # a sum or a count may exceed the range of float16
    wide = torch.promote_types(dtype, torch.float32)
    total = emit.op("aten::sum", _or_zero(emit, facts, values), code_of(wide))
    mean = emit.op("aten::div", total, emit.op("aten::sum", values.mask, None))
    if wide == dtype:
        return mean
    return emit.op("aten::to", mean, code_of(dtype), False, False, None)


def _dtype(emit: Emit, node: Node, facts: Facts, values: Picked) -> Value:
    return emit.op("prim::dtype", values.whole, type=ir.INT)


def _or_zero(emit: Emit, facts: Facts, values: Picked) -> Value:
    return emit.op(
        "aten::where", _unsqueezed_mask(emit, facts, values), values.whole, 0
    )


def _unsqueezed_mask(emit: Emit, facts: Facts, values: Picked) -> Any:
    """The mask, unsqueezed to the rank of the tensor that it selects from."""
    mask = values.mask
    for _ in range(values.rank - (facts.rank(mask) or 0)):
        mask = emit.op("aten::unsqueeze", mask, -1)
    return mask


_POSITIONS = ("aten::where", "aten::nonzero_numpy")
_REDUCTIONS = frozenset(
    f"aten::{name}" for name in "sum mean prod any all amax amin".split()
)

_ENDS = {
    "aten::index_put": _put,
    "aten::sum": _summed,
    "aten::mean": _averaged,
    "prim::dtype": _dtype,
}


_POINTWISE = frozenset(
    f"aten::{name}"
    for name in (
        "abs neg exp exp2 expm1 log log1p log2 log10 sqrt rsqrt reciprocal square pow sin cos tan"
        " sinh cosh tanh asin acos atan atan2 erf erfc sigmoid logit relu relu6 leaky_relu elu selu"
        " celu silu gelu mish softplus hardtanh hardsigmoid hardswish log_sigmoid sign floor ceil"
        " round trunc frac clamp clamp_min clamp_max add sub rsub mul maximum minimum eq ne lt le"
        " gt ge logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor"
        " bitwise_not isnan isinf isfinite nan_to_num masked_fill where to lerp addcmul"
    ).split()
)
"""Each output element depends on the same element of the inputs, and no input raises. Integer
division is not listed, because an element outside the mask may be zero.
"""
