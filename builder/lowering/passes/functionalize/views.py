"""Views: operators whose result shares memory with their first input, and the write to the base for
a write to the view.

Each entry writes `new`, the whole new content of the view that `node` created, into `base`, and
returns the new base. None: it cannot be determined.
"""

from __future__ import annotations

from collections.abc import Callable

from builder.graph_types import Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit

Inverse = Callable[[Emit, Node, Value, Value], Value | None]
INT_MAX = 2**63 - 1
"""The end of a slice that has none."""


def put_range(
    emit: Emit,
    base: Value,
    new: Value,
    dim: Value,
    start: Value | None,
    end: Value | None,
) -> Value:
    """`base` with `[start:end]` of `dim` replaced by `new`: the parts before and after it are
    concatenated with it.

    Parts that are known to be empty are left out. None as start or end means the edge.
    """
    at_start = start is None or ir.is_none(start) or ir.constant(start) == 0
    at_end = end is None or ir.is_none(end) or ir.constant(end) == INT_MAX
    before = []
    if not at_start:
        before = [emit.op("aten::slice", base, dim, None, start, 1)]
    after = []
    if not at_end:
        after = [emit.op("aten::slice", base, dim, end, None, 1)]
    parts = [*before, new, *after]
    if len(parts) == 1:
        return new
    return emit.op("aten::cat", emit.list(parts, ir.TENSOR), dim)


def put_index(emit: Emit, base: Value, new: Value, dim: Value, index: Value) -> Value:
    """`base` with position `index` of `dim` replaced by `new`, which lacks that dimension."""
    position = ir.constant(index)
    if position is None:
        return emit.op("aten::select_scatter", base, new, dim, index)
    end = None
    if position != -1:
        end = emit.constant(position + 1)
    return put_range(emit, base, emit.op("aten::unsqueeze", new, dim), dim, index, end)


def _select(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    return put_index(emit, base, new, node.inputsAt(1), node.inputsAt(2))


def _slice(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    _, dim, start, end, step = ir.inputs(node)
    bounds = [ir.constant(value) for value in (start, end)]
    are_known = all(ir.is_constant(value) for value in (start, end, step))
    if ir.constant(step) != 1 or not are_known or _may_be_empty(*bounds):
        return emit.op("aten::slice_scatter", base, new, dim, start, end, step)
    return put_range(emit, base, new, dim, start, end)


def _may_be_empty(start: int | None, end: int | None) -> bool:
    """Whether the end may be before the start (or the size between them), so that the two outer
    parts would overlap.
    """
    start = start or 0
    return end is not None and ((start < 0) != (end < 0) or end < start)


def _narrow(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    _, dim, start, length = ir.inputs(node)
    if not (ir.is_constant(start) and ir.is_constant(length)) or ir.constant(start) < 0:
        end = emit.op("aten::add", start, length, type=ir.INT)
        return emit.op("aten::slice_scatter", base, new, dim, start, end, 1)
    return put_range(
        emit,
        base,
        new,
        dim,
        start,
        emit.constant(ir.constant(start) + ir.constant(length)),
    )


def _same_sizes(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    return emit.op("aten::reshape", new, emit.size(base))


def _identity(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    return new


def _again(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    """Operators that are their own inverse."""
    return emit.op(node.kind(), new, *ir.inputs(node)[1:])


def _permute(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    order = ir.int_list(node.inputsAt(1))
    if order is None:
        return None
    order = [axis % len(order) for axis in order]
    return emit.op(
        "aten::permute", new, [order.index(axis) for axis in range(len(order))]
    )


def _movedim(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    return emit.op("aten::movedim", new, node.inputsAt(2), node.inputsAt(1))


def _unsqueeze(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    return emit.op("aten::squeeze", new, node.inputsAt(1))


def _diagonal(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    return emit.op("aten::diagonal_scatter", base, new, *ir.inputs(node)[1:])


def _real(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    return emit.op("aten::complex", new, emit.op("aten::imag", base))


def _imag(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    return emit.op("aten::complex", emit.op("aten::real", base), new)


def _as_complex(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    return emit.op("aten::view_as_complex", emit.op("aten::contiguous", new, 0))


def _as_real(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    return emit.op("aten::view_as_real", new)


def _unknown(emit: Emit, node: Node, base: Value, new: Value) -> Value | None:
    return None


VIEWS: dict[str, Inverse] = {
    "aten::select": _select,
    "aten::slice": _slice,
    "aten::narrow": _narrow,
    "aten::view": _same_sizes,
    "aten::view_as": _same_sizes,
    "aten::unflatten": _same_sizes,
    "aten::squeeze": _same_sizes,
    "aten::unsqueeze": _unsqueeze,
    "aten::permute": _permute,
    "aten::movedim": _movedim,
    "aten::moveaxis": _movedim,
    "aten::transpose": _again,
    "aten::swapaxes": _again,
    "aten::swapdims": _again,
    "aten::t": _again,
    "aten::numpy_T": _again,
    "aten::detach": _identity,
    "aten::alias": _identity,
    "prim::unchecked_cast": _identity,
    "aten::_unwrap_optional": _identity,
    "aten::diagonal": _diagonal,
    "aten::expand": _unknown,  # several positions share one element: a write is ambiguous
    "aten::expand_as": _unknown,
    "aten::broadcast_to": _unknown,
    "aten::unfold": _unknown,
    "aten::as_strided": _unknown,
    "aten::real": _real,
    "aten::imag": _imag,
    "aten::view_as_real": _as_complex,
    "aten::view_as_complex": _as_real,
}

SAME_ELEMENTS = frozenset(
    kind for kind, inverse in VIEWS.items() if inverse is _identity
)
"""Views that are their whole base in the same shape."""

REPEATING = frozenset(
    f"aten::{name}"
    for name in "expand expand_as broadcast_to unfold as_strided broadcast_tensors meshgrid".split()
)
"""Operators of which several elements may be one position of memory."""

UNCHECKED = frozenset(
    f"aten::{name}_"
    for name in "index_put _index_put_impl masked_fill index_fill tril triu fill_diagonal".split()
)
"""In-place operators that PyTorch runs on such tensors, too."""


def _put_unbound(
    emit: Emit, node: Node, base: Value, new: Value, at: int
) -> Value | None:
    return put_index(emit, base, new, node.inputsAt(1), emit.constant(at))


def _put_split(
    emit: Emit, node: Node, base: Value, new: Value, at: int
) -> Value | None:
    _, sizes, dim = ir.inputs(node)
    lengths = ir.int_list(sizes)
    size = ir.constant(sizes)
    if isinstance(size, int):
        start = emit.constant(at * size)
        stop = emit.constant((at + 1) * size)
        return put_range(emit, base, new, dim, start, stop)
    if lengths is None:
        return None
    end = None
    if at + 1 < len(lengths):
        end = emit.constant(sum(lengths[: at + 1]))
    return put_range(emit, base, new, dim, emit.constant(sum(lengths[:at])), end)


def _put_chunk(
    emit: Emit, node: Node, base: Value, new: Value, at: int
) -> Value | None:
    """A chunk is ceil(size / chunks) long, so its bounds are arithmetic on the size."""
    _, chunks, dim = ir.inputs(node)
    integer = ir.INT
    size = emit.op("aten::size", base, dim, type=integer)
    count = ir.constant(chunks)
    if count is None:
        return None
    rounded = emit.op("aten::add", size, count - 1, type=integer)
    length = emit.op("aten::floordiv", rounded, count, type=integer)
    start = emit.op("aten::mul", length, at, type=integer)
    end = emit.op("aten::mul", length, at + 1, type=integer)
    return put_range(
        emit, base, new, dim, start if at else None, end if at + 1 < count else None
    )


LISTS_OF_VIEWS: dict[str, Callable[[Emit, Node, Value, Value, int], Value | None]] = {
    "aten::unbind": _put_unbound,
    "aten::split": _put_split,
    "aten::split_with_sizes": _put_split,
    "aten::unsafe_split": _put_split,
    "aten::unsafe_split_with_sizes": _put_split,
    "aten::chunk": _put_chunk,
    "aten::unsafe_chunk": _put_chunk,
}

# These may return one of their inputs or a view of it, although their schema declares a new tensor.
UNDECLARED_VIEWS = frozenset(
    f"aten::{name}"
    for name in [
        "type_as",
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
        "broadcast_tensors",
        "meshgrid",
        "einsum",
        "tensor_split",
        "dropout",
        "feature_dropout",
        "alpha_dropout",
        "feature_alpha_dropout",
        "reshape_as",
        "cartesian_prod",
        "hsplit",
        "vsplit",
        "dsplit",
    ]
)

# In-place operators that change the shape or strides of a tensor, but not its content.
VIEWS_IN_PLACE = frozenset(
    f"aten::{n}"
    for n in [
        "unsqueeze_",
        "squeeze_",
        "transpose_",
        "t_",
        "swapaxes_",
        "swapdims_",
        "detach_",
    ]
)
