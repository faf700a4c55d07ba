"""Whether an in-place operator reads the memory that it writes.

The functional form of a write reads everything first. PyTorch reads and writes element by element,
so `x[:, 1:] = x[:, :-1]` has another result there, which depends on the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from builder.graph_types import Node, Value
from builder.lowering import ir
from builder.lowering.passes.functionalize.alias import Alias
from builder.lowering.passes.functionalize.memory import Memory
from builder.lowering.passes.functionalize.views import INT_MAX, SAME_ELEMENTS

_READ_AS_A_WHOLE = frozenset(
    f"aten::{name}_"
    for name in "masked_scatter addmm addmv addr addbmm baddbmm put".split()
)
"""Operators that read other elements of an argument than the one that they write."""


def reads_written_memory(memory: Memory, node: Node, target: Alias) -> bool:
    """Whether a node may read elements of `target` after it wrote them."""
    whole = node.kind() in _READ_AS_A_WHOLE
    return any(
        _may_overlap(target, memory.alias(value), whole)
        for value in ir.inputs(node)[1:]
        if value.type().kind() == "TensorType" and memory.known(value)
    )


def _may_overlap(target: Alias, read: Alias, whole: bool) -> bool:
    """Whether `read` may have elements of `target` at other positions; with `whole`, whether it may
    have any.
    """
    if target.storage is not read.storage:
        linked = target.storage.linked or ()
        are_roots = target.parent is None and read.parent is None
        return read.storage in linked and (whole or not are_roots)
    views, views_read = list(_chain(target)), list(_chain(read))
    moved: list[int] = []  # dimensions along which their ranges differ
    for one, other in zip(views, views_read, strict=False):
        if _is_same(one, other) and not moved:
            continue
        if one.element is not None and other.element is not None:
            return bool(moved)  # other elements of one list
        dim = _common_dim(one, other)
        if dim is None or any(dim == d or (dim < 0) != (d < 0) for d in moved):
            return True
        if _are_disjoint(one, other):
            return False
        if _is_range(one) and _is_range(other):
            moved.append(dim)
        elif moved or _is_range(one) or _is_range(other):
            return True
        # else: two indices, either of one element or of two
    return whole or bool(moved) or len(views) != len(views_read)


def _chain(alias: Alias) -> Iterator[Alias]:
    """The views that lead to an alias, the first one first; an element of a list of views follows
    the list.
    """
    if alias.parent is not None:
        yield from _chain(alias.parent)
        if alias.view is None or alias.view.kind() not in SAME_ELEMENTS:
            yield alias


def _is_same(one: Alias, other: Alias) -> bool:
    """Whether two views of one parent are the same elements."""
    if one is other:
        return True
    if one.element is not None or other.element is not None:
        return one.element == other.element
    return one.view.kind() == other.view.kind() and _all_equal(one.view, other.view)


def _all_equal(one: Node, other: Node, first: int = 1) -> bool:
    """Whether two nodes have equal arguments from the index `first` on."""
    values, others = ir.inputs(one)[first:], ir.inputs(other)[first:]
    return len(values) == len(others) and all(map(_equal, values, others))


def _equal(one: Value, other: Value) -> bool:
    """Whether two values are certainly equal: sizes and indices that are computed alike."""
    if one.unique() == other.unique():
        return True
    if ir.is_constant(one) or ir.is_constant(other):
        return ir.is_constant(one) and _number(one) == _number(other)
    node, other_node = one.node(), other.node()
    same_kind = node.kind() == other_node.kind() and node.kind() in _COMPUTED
    return same_kind and _all_equal(node, other_node, first=0)


_COMPUTED = frozenset(
    f"aten::{name}" for name in "size add sub mul floordiv floor_divide Int neg".split()
) | {"prim::ListConstruct", "prim::NumToTensor"}


def _common_dim(one: Alias, other: Alias) -> int | None:
    """The dimension of two slices or selects, None if these are other views."""
    views = [one.view, other.view]
    if not all(view is not None and view.kind() in _ALONG_A_DIM for view in views):
        return None
    dims = {ir.constant(view.inputsAt(1)) for view in views}
    (dim,) = dims if len(dims) == 1 else (None,)
    return dim


_ALONG_A_DIM = ("aten::slice", "aten::narrow", "aten::select")


def _is_range(alias: Alias) -> bool:
    return alias.view is not None and alias.view.kind() != "aten::select"


def _are_disjoint(one: Alias, other: Alias) -> bool:
    """Whether two ranges or indices of one dimension certainly have no position in common."""
    (start, end, step), (other_start, other_end, other_step) = map(_range, (one, other))
    if step == other_step != 1 and _alternate(start, other_start, step):
        return True
    return _before(end, other_start) or _before(other_end, start)


def _alternate(start: Any, other: Any, step: Any) -> bool:
    """Whether ranges of one step have no position in common."""
    if not all(isinstance(number, int) for number in (start, other, step)):
        return False
    return bool(min(start, other) >= 0 and (start - other) % step != 0)


def _before(end: Any, start: Any) -> bool:
    """Whether a range that ends at `end` is before one that starts at `start`."""
    if isinstance(end, int) and isinstance(start, int):
        return end <= start and (end < 0) == (start < 0)
    if isinstance(end, int) or isinstance(start, int):
        return False
    return _equal(end, start)


def _range(alias: Alias) -> tuple[Any, Any, Any]:
    """Start, end and step: numbers, or values of the graph. An end that is not known is the last
    one.
    """
    view = alias.view
    start = _number(view.inputsAt(2))
    if view.kind() == "aten::slice":
        end, step = _number(view.inputsAt(3)), _number(view.inputsAt(4))
        return start or 0, INT_MAX if end is None else end, step
    length = _number(view.inputsAt(3)) if view.kind() == "aten::narrow" else 1
    if not isinstance(start, int) or not isinstance(length, int):
        return start, INT_MAX, 1
    end = start + length
    return start, INT_MAX if start < 0 <= end else end, 1


def _number(value: Value) -> Any:
    return ir.constant(value) if ir.is_constant(value) else value
