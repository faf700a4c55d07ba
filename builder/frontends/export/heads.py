"""Finds the moves of axes around attention of torch.nn that can be written with fewer nodes.

`torch.nn.functional.multi_head_attention_forward` computes with the time axis first, joins the
axes of batch and heads, and stacks the three projections of one layer. A trace of an encoder layer
has one operator instead. A program has some thirty nodes, which lowering would have to merge again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

aten: Any = torch.ops.aten
Node = torch.fx.Node
_COPIES = (aten.contiguous.default, aten.clone.default)
_TRANSPOSE = (aten.transpose.int,)
_PERMUTE = (aten.permute.default,)
_STACKING = (
    (aten.unsqueeze.default, 0),
    (aten.transpose.int, 0, -2),
    (aten.squeeze.dim, -2),
)
_RESHAPES = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)


class Form(NamedTuple):
    """A node's result: the result of `base` after these operators, each with its arguments after
    the first one.
    """

    base: Node
    steps: tuple[tuple[str, tuple[Any, ...]], ...] = ()


class Heads:
    """`forms` has the nodes that are written in another form, `skipped` those that only these
    nodes read, and `moved` those whose result has other axes than in the program.
    """

    def __init__(
        self, graphs: Iterable[torch.fx.Graph], left_out: Collection[Node] = ()
    ) -> None:
        """`left_out` are calls that are not written. The program must not write to memory."""
        self.forms: dict[Node, Form] = {}
        self.skipped: set[Node] = set()
        self.moved: set[Node] = set()
        self._claimed: set[Node] = set(left_out)
        for graph in graphs:
            for layer in _calls(graph, aten.linear.default):
                self._split(layer)
                self._join(layer)
            for attention in _calls(graph, aten.scaled_dot_product_attention.default):
                self._widen(attention)

    def _claim(self, *nodes: Node) -> bool:
        """Whether no other form has any of these nodes; from here on this one has them."""
        if not self._claimed.isdisjoint(nodes):
            return False
        self._claimed.update(nodes)
        return True

    def _split(self, layer: Node) -> None:
        """Write `(time, batch, heads * width)` to `(batch, heads, time, width)` behind a layer as
        one reshape and one permutation, and parts of the layer's result as slices.
        """
        stacked = _stacked(layer)
        parts = _parts(layer, stacked)
        heads = _all_headed(parts)
        if not heads:
            return
        selects = [part.node for part in parts if part.node is not layer]
        moves = [node for headed in heads for node in headed.moves]
        results = [node for headed in heads for node in headed.results]
        source = _read(layer)
        first = None
        if _swaps(source) and len(source.users) == 1:
            first = source
        layer_and_move = [layer]
        if first is not None:
            layer_and_move.append(first)
        if not self._claim(*layer_and_move, *stacked, *selects, *moves, *results):
            return
        for part, headed in zip(parts, heads, strict=True):
            for result in headed.results:
                self.forms[result] = Form(
                    layer, (*part.slices, *_heads_of(result, first))
                )
        self.skipped.update(stacked, selects, moves)
        if first is not None:
            self.forms[first] = Form(_read(first))
            self.moved.update(layer_and_move)

    def _join(self, layer: Node) -> None:
        """Write `(batch, heads, time, width)` to `(time, batch, heads * width)` around a layer
        before the layer.
        """
        rows = _read(layer)
        shaped = _only_user(layer, _RESHAPES)
        alone = _is(rows, _RESHAPES) and len(rows.users) == 1
        move: Any = _read(rows) if alone else None
        if shaped is None or not _is(move, _PERMUTE) or len(move.users) > 1:
            return
        if list(move.args[1]) != [2, 0, 1, 3] or not _joins(move.args[0], rows, shaped):
            return
        back = _only_user(shaped, _TRANSPOSE)
        if not _swaps(back):
            back = None
        nodes = (rows, layer, shaped, move, back)
        if not self._claim(*(node for node in nodes if node is not None)):
            return
        heads = move.args[0]
        self.forms[rows] = Form(heads, _joined(heads, shaped, back))
        self.forms[shaped] = Form(layer)
        self.skipped.add(move)
        self.moved.update((rows, layer))
        if back is not None:
            self.forms[back] = Form(shaped)
            self.moved.add(shaped)

    def _widen(self, attention: Node) -> None:
        """Leave out the expansion of a mask, which attention does itself."""
        mask: Any = _read(attention, 3) or attention.kwargs.get("attn_mask")
        nodes = list(_chain(mask, _RESHAPES))
        wide = _read(nodes[-1]) if nodes else mask
        if not _is(wide, (aten.expand.default,)) or any(
            len(item.users) > 1 for item in nodes
        ):
            return
        nodes = [*nodes, wide]
        source = wide.args[0]
        ranks = {len(_shape(item)) for item in (mask, wide, source, attention)}
        if (
            len(wide.users) > 1
            or ranks != {4}
            or not _equal(_shape(mask), _shape(wide))
        ):
            return
        if self._claim(*nodes):
            self.skipped.update(nodes[1:])
            self.forms[mask] = Form(source)
            self.moved.add(mask)


class _Part(NamedTuple):
    """A part of a layer's result, and the slice of the result that has it (if it is not whole)."""

    node: Node
    slices: tuple[tuple[str, tuple[Any, ...]], ...] = ()


class _Headed(NamedTuple):
    """The nodes from a part to its heads, and the tensors of heads."""

    moves: tuple[Node, ...]
    results: tuple[Node, ...]


def _calls(graph: torch.fx.Graph, target: Any) -> list[Node]:
    return list(graph.find_nodes(op="call_function", target=target))


def _read(node: Node, index: int = 0) -> Any:
    """The argument at `index`; None if there is none."""
    if len(node.args) > index:
        return node.args[index]
    return None


def _is(node: Any, targets: Collection[Any]) -> bool:
    return (
        isinstance(node, Node) and node.op == "call_function" and node.target in targets
    )


def _only_user(node: Node, targets: Collection[Any], *args: Any) -> Any:
    """The node's user, if it is the only one, of these operators, and has these arguments."""
    user: Any = next(iter(node.users), None)
    is_only_user = len(node.users) == 1 and _is(user, targets)
    if is_only_user and (not args or user.args[1:] == args):
        return user
    return None


def _shape(node: Any) -> list[Any]:
    """The sizes of a tensor; none for anything else."""
    meta = None
    if isinstance(node, Node):
        meta = node.meta.get("val")
    if isinstance(meta, torch.Tensor):
        return list(meta.shape)
    return []


def _equal(sizes: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether sizes are equal numbers or expressions. Comparing them would add a guard."""
    return list(map(expression_of, sizes)) == list(map(expression_of, others))


def expression_of(size: Any) -> Any:
    """The expression of a symbolic size; a fixed size as it is."""
    if isinstance(size, torch.SymInt):
        return size.node.expr
    return size


def _swaps(node: Any) -> bool:
    """Whether it exchanges the first two of three axes, as `batch_first` does."""
    if not _is(node, _TRANSPOSE) or len(_shape(node)) != 3:
        return False
    return tuple(node.args[1:]) in ((0, 1), (1, 0))


def _chain(node: Any, targets: Collection[Any]) -> Iterator[Node]:
    """The node and those before it that are calls of these operators."""
    while _is(node, targets):
        yield node
        node = node.args[0]


def _stacked(layer: Node) -> list[Node]:
    """The nodes that stack the parts of a layer's result along a new first axis: `unflatten(-1,
    [parts, size]).unsqueeze(0).transpose(0, -2).squeeze(-2).contiguous()`.
    """
    first = _only_user(layer, (aten.unflatten.int,))
    if first is None or first.args[1] != -1 or len(_shape(layer)) != 3:
        return []
    sizes = first.args[2]
    are_static = all(type(size) is int and size >= 1 for size in sizes)
    if len(sizes) != 2 or not are_static:
        return []
    chain = [first]
    for target, *args in _STACKING:
        chain.append(_only_user(chain[-1], (target,), *args))
        if chain[-1] is None:
            return []
    copied = _only_user(chain[-1], _COPIES)
    if copied is None:
        return chain
    return [*chain, copied]


def _parts(layer: Node, stacked: Sequence[Node]) -> list[_Part]:
    """The parts of the layer's result that are read; none if they are not all like that."""
    if not stacked:
        return [_Part(layer)]
    _, size = _read(stacked[0], 2)
    parts = []
    for user in stacked[-1].users:
        is_part = _is(user, (aten.select.int,)) and user.args[1] == 0
        index = _read(user, 2) if is_part else None
        if type(index) is not int or index < 0:
            return []
        start = index * size
        parts.append(_Part(user, (("aten::slice", (2, start, start + size, 1)),)))
    return parts


def _all_headed(parts: Sequence[_Part]) -> list[_Headed]:
    """The nodes behind each part; none if a part has no heads."""
    heads = []
    for part in parts:
        headed = _headed(part.node)
        if headed is None:
            return []
        heads.append(headed)
    return heads


def _headed(part: Node) -> _Headed | None:
    """The nodes behind `(time, batch, heads * width)` up to `(batch, heads, time, width)`."""
    joined = _only_user(part, _RESHAPES)
    move: Any = None
    if joined is not None:
        move = _only_user(joined, _TRANSPOSE)
    if joined is None or not _swaps(move) or len(_shape(part)) != 3:
        return None
    time, batch, whole = _shape(part)
    for result in move.users:
        if not _is(result, _RESHAPES) or len(_shape(result)) != 4:
            return None
        _, heads, _, width = _shape(result)
        if type(whole) is not int or type(heads) is not int or heads * width != whole:
            return None
        if not _equal(_shape(result), [batch, heads, time, width]):
            return None
        if not _equal(_shape(joined)[::2], [time, width]):
            return None
    return _Headed((joined, move), tuple(move.users))


def _heads_of(result: Node, swapped: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """The operators that make the heads of a layer's result, whose first axis is the batch if the
    layer reads its input `swapped`.
    """
    batch, heads, time, width = _read(result, 1)
    leading = _leading(time, batch, swapped)
    order = [1, 2, 0, 3] if swapped is None else [0, 2, 1, 3]
    return ("aten::reshape", ([*leading, heads, width],)), ("aten::permute", (order,))


def _joined(
    heads: Node, shaped: Node, swapped: Any
) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    """The operators that join heads to the axes of `shaped`. The first axis is the batch if that is
    read `swapped`.
    """
    time, batch, _ = _read(shaped, 1)
    _, count, _, width = _shape(heads)
    leading = _leading(time, batch, swapped)
    order = [2, 0, 1, 3] if swapped is None else [0, 2, 1, 3]
    return ("aten::permute", (order,)), ("aten::reshape", ([*leading, count * width],))


def _leading(time: Any, batch: Any, swapped: Any) -> list[Any]:
    """The first two axes of a layer's rows. The batch is first if they are read `swapped`."""
    return [time, batch] if swapped is None else [batch, time]


def _joins(heads: Any, rows: Node, shaped: Any) -> bool:
    """Whether rows are `(time * batch, heads * width)` of these heads, and `shaped` has time and
    batch again, with sizes that are known where the rows are written.
    """
    if [len(_shape(node)) for node in (heads, rows, shaped)] != [4, 2, 3]:
        return False
    batch, count, time, width = _shape(heads)
    if type(count) is not int or type(width) is not int:
        return False
    if not all(size < rows for size in shaped.args[1] if isinstance(size, Node)):
        return False
    same_width = _equal(_shape(rows)[1:], [count * width])
    return same_width and _equal(_shape(shaped)[:2], [time, batch])
