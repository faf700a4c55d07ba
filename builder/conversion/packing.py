"""Packed sequences: what stands in the network where the graph has
torch.nn.utils.rnn.PackedSequence's tensors.

torch packs a padded batch step by step, as many rows in each step as have not ended, which no
network's shapes can follow. Here `data` stays padded, and `batch_sizes` are the lengths. What works
on each row of `data` alone works on the padded tensor; anything else that reads either of them is
refused.
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
    """`batch_sizes`: how many rows each step has, as the lengths of the rows say."""

    lengths: Lengths


@dataclass(frozen=True, eq=False)
class Rows:
    """`data`: `padded` is [time, batch, ...]; values behind a row's length are padding."""

    padded: Any
    lengths: Lengths


Packed = Rows | BatchSizes
Convert = Callable[[list[Any]], list[Any]]

HOLDERS = frozenset(
    "prim::ListConstruct prim::TupleConstruct prim::unchecked_cast aten::_unwrap_optional".split()
)
"""Nodes that hold a value, whatever it is."""

BY_ROW = frozenset(
    """
    abs add celu clamp clamp_max clamp_min div elu exp gelu hardsigmoid hardswish hardtanh
    layer_norm leaky_relu linear log log1p mul neg pow relu relu6 rsub selu sigmoid silu softplus
    sqrt sub tanh to
""".split()
)
"""Operators that work on each element, or on the last axes: the same for a row wherever it stands.
"""

UNPACK = "unpack it first: pad_packed_sequence(packed, total_length=x.size(1))"


def is_packed(value: object) -> bool:
    """Whether the value is, or a list of values holds, a part of a packed sequence."""
    return any(map(is_packed, value)) if isinstance(value, list) else isinstance(value, Packed)


def answer(
    ctx: ConversionContext, node: Node, key: str, values: list[Any], convert: Convert
) -> Any:
    """The result of a node that reads a packed sequence and is no recurrent layer; `convert` gives
    the node's results for other values. Raises Unconvertible.
    """
    question = _QUESTIONS.get(key)
    if question is not None:
        return question(ctx, *values)
    if key.removeprefix("aten::").partition(".")[0] not in BY_ROW:
        raise Unconvertible(f"{node.kind()} reads a part of a packed sequence", UNPACK)
    if not isinstance(values[0], Rows) or not _go_together(ctx, node, values):
        raise Unconvertible(
            f"{node.kind()} reads packed data together with a tensor that is not packed", UNPACK
        )
    (result,) = convert([value.padded if isinstance(value, Rows) else value for value in values])
    return Rows(result, values[0].lengths)


def _go_together(ctx: ConversionContext, node: Node, values: list[Any]) -> bool:
    """Whether what else the node reads is packed alike, or the same for every row."""
    first = values[0]
    rank = ctx.rank(first.padded) - 1
    others = [v for v in values[1:] if hasattr(v, "shape")]
    alike = all(v.lengths is first.lengths for v in values if isinstance(v, Rows))
    return alike and (node.kind() == "aten::linear" or all(ctx.rank(v) < rank for v in others))


def _size(ctx: ConversionContext, value: Packed, axis: int) -> Any:
    """len(batch_sizes) is the greatest length; of data all axes are known but the first."""
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
    """batch_sizes[0]: every row has a first step."""
    if not isinstance(value, BatchSizes) or index != 0:
        raise Unconvertible(
            "the number of rows at a step depends on data, except at the first step", UNPACK
        )
    batch = value.lengths.batch
    return (
        replace(batch, zero_dim=True) if isinstance(batch, DynamicScalar) else torch.tensor(batch)
    )


def _rank(ctx: ConversionContext, value: Packed) -> int:
    return ctx.rank(value.padded) - 1 if isinstance(value, Rows) else 1


_QUESTIONS: dict[str, Callable[..., Any]] = {
    "aten::size.int": _size,
    "aten::len.Tensor": lambda ctx, value: _size(ctx, value, 0),
    "aten::dim": _rank,
    "aten::select.int": _select,
    "prim::dtype": _dtype,
    "prim::device": lambda ctx, value: torch.device("cpu"),
}
