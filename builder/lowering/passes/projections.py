"""Split packed QKV projections into one linear layer each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from builder.analysis import Facts
from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.dtypes import bottom_up, input_facts
from builder.lowering.passes.moves import MOVES, axis_at, moved


@lowering_pass("split-projections", touches=("aten::linear",))
def split_projections(graph: Graph, context: Context) -> None:
    """Replace a linear layer whose output is split for attention by one layer for each part.

    TensorRT itself merges layers with one input, but copies for a slice. All attention then has one
    form. Measured on an H200 (BERT-base, fp16) in the opposite direction: one packed layer with
    slices took 1.054 to 1.103 times as long as three layers. If one kernel computes the attention
    (`scale-queries`), it copies in both cases: one block took 45.5 us packed and 47.5 us split.
    Whole networks have not been measured for that case.
    """
    candidates = {
        node.output().unique()
        for node in ir.nodes_of(graph, "aten::linear")
        if _may_split(node)
    }
    if not candidates:
        return
    facts = input_facts(graph, context)
    paths = []
    for node in bottom_up(graph):
        facts.learn(node)
        if node.kind() == "aten::linear" and node.output().unique() in candidates:
            paths += _paths(node, facts)
    for path in paths:
        for part in path.parts:
            part.value.replaceAllUsesWith(_separate_layer(graph, path, part))


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis between the layer and the split. For a factor of the layer's outputs, `outer * size *
    inner` is their number. Other axes have no size.
    """

    outer: int = 1
    size: int = 0
    inner: int = 1


@dataclass(frozen=True)
class Part:
    """The part of an axis in `value`: `length` positions from `start`. The axis itself is removed
    if `dropped`.
    """

    value: Any
    start: int
    length: int
    dropped: bool


@dataclass(frozen=True)
class Path:
    """A layer, an optional reshape or unflatten after it, the axes after that, their order at the
    split (possibly with inserted axes of length 1), and the parts along `split_axis`.
    """

    layer: Any
    shaped: Any
    axes: list[Axis]
    order: list[Axis]
    split_axis: Axis
    parts: tuple[Part, ...]


def _may_split(node: Node) -> bool:
    weight = ir.constant(node.inputsAt(1))
    bias = node.inputsAt(2)
    constant = ir.is_none(bias) or isinstance(ir.constant(bias), torch.Tensor)
    matrix = (
        isinstance(weight, torch.Tensor)
        and weight.dim() == 2
        and weight.layout is torch.strided
    )
    return matrix and constant and not ir.in_fallback(node)


def _paths(layer: Node, facts: Facts) -> list[Path]:
    """The path from the layer to the split of its output, or none."""
    rank = facts.rank(layer.output()) or facts.rank(layer.inputsAt(0))
    if rank is None:
        return []
    outputs = int(ir.constant(layer.inputsAt(1)).shape[0])
    axes = [*(Axis() for _ in range(rank - 1)), Axis(size=outputs)]
    value = layer.output()
    shaped = _only_user(layer.output(), _SHAPES)
    if shaped is not None:
        reshaped = _SHAPES[shaped.kind()](shaped, axes)
        if reshaped is None:
            return []
        axes = reshaped
        value = shaped.output()
    order = axes
    while (node := _only_user(value, _MOVES)) is not None:
        after = _MOVES[node.kind()](node, order)
        if after is None:
            return []
        order = after
        value = node.output()
    split = _split_axis(value, order)
    if split is None:
        return []
    split_axis, parts = split
    if not any(_is_multiplied(part.value) for part in parts):
        return []
    return [Path(layer, shaped, axes, order, split_axis, parts)]


def _only_user(value: Value, kinds: dict[str, Any]) -> Any:
    """The value's user, if it is the only one and of these kinds."""
    users = [use.user for use in value.uses()]
    if len(users) != 1:
        return None
    user = users[0]
    if user.kind() in kinds and not ir.in_fallback(user):
        return user
    return None


def _unflattened(node: Node, axes: list[Axis]) -> list[Axis] | None:
    axis = axis_at(node, 1, len(axes))
    sizes = _listed(node.inputsAt(2))
    if axis is None or sizes is None or not axes[axis].size:
        return None
    factors = _factors(axes[axis], _filled(sizes, axes[axis].size))
    if factors is None:
        return None
    return [*axes[:axis], *factors, *axes[axis + 1 :]]


def _reshaped(node: Node, axes: list[Axis]) -> list[Axis] | None:
    """The last axes, if their sizes are known and their product is the number of the layer's
    outputs.
    """
    sizes = _listed(node.inputsAt(1)) or []
    before = len(axes) - 1
    if _keeps(node, before):
        last = _filled(sizes[before:], axes[-1].size)
        sizes = [*sizes[:before], *last]
    for first in reversed(range(len(sizes))):
        factors = _factors(axes[-1], sizes[first:])
        if factors is not None:
            return [*(Axis() for _ in range(first)), *factors]
    return None


def _keeps(node: Node, before: int) -> bool:
    """Whether the first axes after the reshape are those of the layer's input, except its last."""
    items = ir.list_items(node.inputsAt(1)) or []
    x = node.inputsAt(0).node().inputsAt(0)
    are_sizes_of_input = [
        not isinstance(item, int) and _reads_size(item, x, axis)
        for axis, item in enumerate(items[:before])
    ]
    return 0 < before == len(are_sizes_of_input) and all(are_sizes_of_input)


def _filled(sizes: list[int | None], whole: int) -> list[int | None]:
    """The sizes with the one unknown size computed, so that their product is `whole`."""
    volume = math.prod(size for size in sizes if size is not None)
    if not volume or sizes.count(None) != 1:
        return sizes
    return [whole // volume if size is None else size for size in sizes]


def _reads_size(item: Value, x: Value, axis: int) -> bool:
    node = item.node()
    return bool(
        node.kind() == "aten::size"
        and node.inputsAt(0) == x
        and ir.constant(node.inputsAt(1)) == axis
    )


_SHAPES: dict[str, Callable[[Any, list[Axis]], list[Axis] | None]] = {
    "aten::unflatten": _unflattened,
    "aten::reshape": _reshaped,
}


def _listed(value: Value) -> list[int | None] | None:
    """The list's numbers, with None for each unknown or inferred one."""
    items = ir.list_items(value)
    if items is None:
        return None
    numbers = [item if isinstance(item, int) else ir.constant(item) for item in items]
    return [None if size == -1 else size for size in numbers]


def _factors(axis: Axis, sizes: Sequence[int | None]) -> list[Axis] | None:
    """The axis as factors of these sizes; None if their product is not its size."""
    lengths = [size for size in sizes if size]
    if len(lengths) != len(sizes) or math.prod(lengths) != axis.size:
        return None
    factors = []
    for at, size in enumerate(lengths):
        outer = math.prod(lengths[:at])
        inner = math.prod(lengths[at + 1 :])
        factors.append(Axis(outer, size, inner))
    return factors


def _unsqueezed(node: Node, axes: list[Axis]) -> list[Axis] | None:
    axis = axis_at(node, 1, len(axes) + 1)
    if axis is None:
        return None
    return [*axes[:axis], Axis(size=-1), *axes[axis:]]


def _squeezed(node: Node, axes: list[Axis]) -> list[Axis] | None:
    axis = None
    if node.inputsSize() == 2:
        axis = axis_at(node, 1, len(axes))
    if axis is None or not _is_one(axes[axis]):
        return None
    return [*axes[:axis], *axes[axis + 1 :]]


def _is_one(axis: Axis) -> bool:
    """Whether the axis was inserted between the layer and the split."""
    return axis.size == -1


_MOVES: dict[str, Callable[[Any, list[Axis]], list[Axis] | None]] = {
    **dict.fromkeys(MOVES, moved),
    "aten::unsqueeze": _unsqueezed,
    "aten::squeeze": _squeezed,
}


def _split_axis(value: Value, axes: list[Axis]) -> tuple[Axis, tuple[Part, ...]] | None:
    """The axis along which all users of the value split it, and the parts."""
    users = [use.user for use in value.uses()]
    if not users or any(
        user.kind() not in _SPLITS or ir.in_fallback(user) for user in users
    ):
        return None
    split_axes = set()
    for user in users:
        axis_input, _ = _SPLITS[user.kind()]
        split_axes.add(axis_at(user, axis_input, len(axes)))
    axis = split_axes.pop()
    if axis is None or split_axes or axes[axis].size < 2:
        return None
    size = axes[axis].size
    parts: list[Part] = []
    for user in users:
        _, parts_of = _SPLITS[user.kind()]
        parts_of_user = parts_of(user, size)
        if parts_of_user is None:
            return None
        parts += parts_of_user
    if len(parts) < 2:
        return None
    lengths = [part.length for part in parts]
    if min(lengths) <= 0 or sum(lengths) > size:
        return None
    return axes[axis], tuple(parts)


def _selected(node: Node, size: int) -> list[Part] | None:
    index = ir.constant(node.inputsAt(2))
    inside = isinstance(index, int) and -size <= index < size
    if inside:
        return [Part(node.output(), index % size, 1, dropped=True)]
    return None


def _sliced(node: Node, size: int) -> list[Part] | None:
    start = ir.constant(node.inputsAt(2))
    end = ir.constant(node.inputsAt(3))
    step = ir.constant(node.inputsAt(4))
    are_known = ir.is_constant(node.inputsAt(2)) and ir.is_constant(node.inputsAt(3))
    if step != 1 or not are_known:
        return None
    first, last, _ = slice(start, end).indices(size)
    return [Part(node.output(), first, last - first, dropped=False)]


def _unpacked(
    node: Node, lengths: Sequence[int], dropped: bool = False
) -> list[Part] | None:
    """The outputs of an operator that returns a list, if the list is only unpacked."""
    users = [use.user for use in node.output().uses()]
    if len(users) != 1 or users[0].kind() != "prim::ListUnpack":
        return None
    unpack = users[0]
    if unpack.outputsSize() != len(lengths):
        return None
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    return [
        Part(*part, dropped)
        for part in zip(unpack.outputs(), starts, lengths, strict=True)
    ]


def _unbound(node: Node, size: int) -> list[Part] | None:
    return _unpacked(node, [1] * size, dropped=True)


def _chunked(node: Node, size: int) -> list[Part] | None:
    chunks = ir.constant(node.inputsAt(1))
    if isinstance(chunks, int) and chunks > 0:
        return _unpacked(node, _equal_parts(size, -(-size // chunks)))
    return None


def _split(node: Node, size: int) -> list[Part] | None:
    part_size = ir.constant(node.inputsAt(1))
    part_sizes = ir.int_list(node.inputsAt(1))
    if isinstance(part_size, int) and part_size > 0:
        part_sizes = _equal_parts(size, part_size)
    if part_sizes is None or sum(part_sizes) != size:
        return None
    return _unpacked(node, part_sizes)


def _equal_parts(size: int, part_size: int) -> list[int]:
    return [min(part_size, size - start) for start in range(0, size, part_size)]


_SPLITS: dict[str, tuple[int, Callable[[Any, int], list[Part] | None]]] = {
    "aten::select": (1, _selected),
    "aten::slice": (1, _sliced),
    "aten::unbind": (1, _unbound),
    "aten::chunk": (2, _chunked),
    "aten::split": (2, _split),
    "aten::split_with_sizes": (2, _split),
}
"""By operator: the input that names the axis, and the function that returns the parts for its size.
"""

_PRODUCTS = frozenset(f"aten::{name}" for name in ("matmul", "bmm", "baddbmm"))
_ON = (
    "transpose permute reshape unsqueeze squeeze unflatten expand select unbind"
    " mul div add neg cat"
)
_PASSES_ON = frozenset(f"aten::{name}" for name in _ON.split()) | {
    "prim::ListConstruct",
    "prim::ListUnpack",
}
_MOST_STEPS = 12
"""Steps between a projection and its product; rotary embeddings take eight."""


def _is_multiplied(value: Value, steps: int = _MOST_STEPS) -> bool:
    """Whether a product of two tensors reads the value, moved or scaled, as in attention. Splits
    for a gate or a recurrent cell are not changed.
    """
    users = [use.user for use in value.uses()]
    if any(user.kind() in _PRODUCTS for user in users):
        return True
    passing_on = []
    if steps:
        passing_on = [user for user in users if user.kind() in _PASSES_ON]
    return any(
        _is_multiplied(value, steps - 1)
        for user in passing_on
        for value in user.outputs()
    )


def _separate_layer(graph: Graph, path: Path, part: Part) -> Value:
    """Compute the part by a separate layer, with its shape, axis order and inserted axes of length
    1.
    """
    emit = Emit(graph, path.shaped or path.layer, path.layer)
    x, weight, bias = path.layer.inputs()
    rows = [
        _rows(ir.constant(operand), path.split_axis, part) for operand in (weight, bias)
    ]
    value = emit.op("aten::linear", x, *map(emit.constant, rows))
    dropped = path.split_axis if part.dropped else None
    axes = [axis for axis in path.axes if axis is not dropped]
    order = [axis for axis in path.order if axis is not dropped]
    value = _shaped(emit, path, part, value, axes)
    permutation = [axes.index(axis) for axis in order if not _is_one(axis)]
    if permutation != sorted(permutation):
        value = emit.op("aten::permute", value, permutation)
    for position, axis in enumerate(order):
        if _is_one(axis):
            value = emit.op("aten::unsqueeze", value, position)
    return value


def _shaped(
    emit: Emit, path: Path, part: Part, value: Value, axes: list[Axis]
) -> Value:
    """The layer's output with these axes: unchanged, or after the reshape or unflatten."""
    factors = [axis for axis in axes if axis.size > 0]
    sizes = [part.length if axis is path.split_axis else axis.size for axis in factors]
    if path.shaped is None:
        return value
    if path.shaped.kind() == "aten::unflatten":
        if len(sizes) == 1:
            return value
        return emit.op("aten::unflatten", value, axes.index(factors[0]), sizes)
    stated = ir.list_items(path.shaped.inputsAt(1)) or []
    leading = stated[: len(axes) - len(factors)]
    return emit.op("aten::reshape", value, emit.ints([*leading, *sizes]))


def _rows(weight: torch.Tensor | None, axis: Axis, part: Part) -> torch.Tensor | None:
    if weight is None:
        return None
    columns = weight.shape[1:]
    rows = weight.reshape(axis.outer, axis.size, axis.inner, *columns)
    selected = rows[:, part.start : part.start + part.length]
    return selected.reshape(-1, *columns).clone()
