"""Packed sequences: the network's values for the tensors of torch.nn.utils.rnn.PackedSequence.
torch packs a padded batch step by step, with only the active rows in each step, so that shapes
depend on data.

Here `data` stays padded, and `batch_sizes` are the lengths. Operators on single rows of `data` run
on the padded tensor; other users of these values are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.extent import Lengths
from builder.graph_types import Node


@dataclass(frozen=True, eq=False)
class BatchSizes:
    """`batch_sizes`: the number of rows in each step, represented by the lengths of the rows."""

    lengths: Lengths


@dataclass(frozen=True, eq=False)
class Rows:
    """`data`: `padded` is [time, batch, ...]; values after a row's length are padding."""

    padded: Any
    lengths: Lengths


Packed = Rows | BatchSizes
Convert = Callable[[list[Any]], list[Any]]

HOLDERS = frozenset(
    "prim::ListConstruct prim::TupleConstruct prim::unchecked_cast aten::_unwrap_optional".split()
)
"""Nodes that accept any value."""

BY_ROW = frozenset(
    """
    abs add celu clamp clamp_max clamp_min div elu exp gelu hardsigmoid hardswish hardtanh
    layer_norm leaky_relu linear log log1p mul neg pow relu relu6 rsub selu sigmoid silu softplus
    sqrt sub tanh to
""".split()
)
"""Operators on single elements or on the last axes, which are independent of the row's position.
"""

UNPACK = "unpack it first: pad_packed_sequence(packed, total_length=x.size(1))"


def is_packed(value: object) -> bool:
    """Whether the value is a part of a packed sequence, or a list that contains one."""
    if isinstance(value, list):
        return any(map(is_packed, value))
    return isinstance(value, Packed)


def result(
    ctx: ConversionContext, node: Node, key: str, values: list[Any], convert: Convert
) -> Any:
    """The result of a node that reads a packed sequence and is not a recurrent layer. `convert`
    returns the node's results for other values. Raises Unconvertible.
    """
    question = _QUESTIONS.get(key)
    if question is not None:
        return question(ctx, *values)
    if key.removeprefix("aten::").partition(".")[0] not in BY_ROW:
        raise Unconvertible(f"{node.kind()} reads a part of a packed sequence", UNPACK)
    if not isinstance(values[0], Rows) or not _go_together(ctx, node, values):
        raise Unconvertible(
            f"{node.kind()} reads packed data together with a tensor that is not packed",
            UNPACK,
        )
    (result,) = convert(
        [value.padded if isinstance(value, Rows) else value for value in values]
    )
    return Rows(result, values[0].lengths)


def _go_together(ctx: ConversionContext, node: Node, values: list[Any]) -> bool:
    """Whether the node's other inputs have the same packing, or are the same for every row."""
    first = values[0]
    rank = ctx.rank(first.padded) - 1
    others = [value for value in values[1:] if hasattr(value, "shape")]
    if any(
        value.lengths is not first.lengths
        for value in values
        if isinstance(value, Rows)
    ):
        return False
    return node.kind() == "aten::linear" or all(
        ctx.rank(value) < rank for value in others
    )


def _size(ctx: ConversionContext, value: Packed, axis: int) -> Any:
    """len(batch_sizes) is the largest length. All axes of data are known except the first."""
    if isinstance(value, BatchSizes):
        return value.lengths.longest
    axis = axis % _rank(ctx, value)
    if axis == 0:
        raise Unconvertible("the number of packed rows depends on data", UNPACK)
    return ctx.size(value.padded, axis + 1)


def _dtype(ctx: ConversionContext, value: Packed) -> int:
    from builder.dtypes import code_of

    return code_of(ctx.dtype(value.padded) if isinstance(value, Rows) else torch.int64)


def _select(ctx: ConversionContext, value: Packed, axis: int, index: int) -> Any:
    """batch_sizes[0] is the batch size, because every row has a first step."""
    if not isinstance(value, BatchSizes) or index != 0:
        raise Unconvertible(
            "the number of rows at a step depends on data, except at the first step",
            UNPACK,
        )
    batch = value.lengths.batch
    if isinstance(batch, DynamicScalar):
        return replace(batch, zero_dim=True)
    return torch.tensor(batch)


def _rank(ctx: ConversionContext, value: Packed) -> int:
    if isinstance(value, Rows):
        return ctx.rank(value.padded) - 1
    return 1


_QUESTIONS: dict[str, Callable[..., Any]] = {
    "aten::size.int": _size,
    "aten::len.Tensor": lambda ctx, value: _size(ctx, value, 0),
    "aten::dim": _rank,
    "aten::select.int": _select,
    "prim::dtype": _dtype,
    "prim::device": lambda ctx, value: torch.device("cpu"),
}
