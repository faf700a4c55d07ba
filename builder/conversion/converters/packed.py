"""Packed sequences: recurrent layers over a padded batch with a length for each row.

`torch.nn.utils.rnn.pack_padded_sequence` and `pad_packed_sequence`, with or without
`enforce_sorted`. The tensors of the PackedSequence between them are never computed (see
conversion/packing.py).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from builder.conversion import dtypes
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.cells import weights_of
from builder.conversion.converters.recurrent import (
    KINDS,
    Kind,
    dropout_in_training,
    module_of,
    reads_states,
    state_of,
)
from builder.conversion.converters.sequences import sequence
from builder.conversion.dynamic import Size, same_size
from builder.conversion.extent import Lengths
from builder.conversion.layers import choose
from builder.conversion.packing import BatchSizes, Rows
from builder.conversion.registry import converter, for_each
from builder.conversion.values import Tensor
from builder.engine import ITensor
from builder.graph_types import Node

_PACKED = ("data", "batch_sizes")


def _packed_here(ctx: ConversionContext, call: SimpleNamespace) -> str | None:
    """The PackedSequence comes from pack_padded_sequence within the model"""
    is_packed = isinstance(call.data, Rows) and isinstance(call.batch_sizes, BatchSizes)
    if is_packed and call.data.lengths is call.batch_sizes.lengths:
        return None
    return (
        "the lengths are known only for a sequence that pack_padded_sequence"
        " packs within the model"
    )


@converter(
    "aten::_pack_padded_sequence",
    note="an invalid length is clamped to 1 to the padded length; torch raises",
    folds=False,
)
def pack(
    ctx: ConversionContext, x: ITensor, lengths: Tensor, batch_first: bool
) -> tuple[Rows, BatchSizes]:
    """The padded tensor and the lengths, instead of the packed data and batch sizes"""
    if batch_first:
        x = ctx.permute(x, [1, 0, *range(2, ctx.rank(x))])
    extent = Lengths(ctx, lengths, ctx.size(x, 0), ctx.size(x, 1))
    return Rows(x, extent), BatchSizes(extent)


@converter(
    "aten::_pad_packed_sequence",
    when=_packed_here,
    packed=_PACKED,
    note="without total_length the size depends on the data: not on TensorRT-RTX",
)
def pad(
    ctx: ConversionContext,
    data: Rows,
    batch_first: bool,
    padding_value: float,
    total_length: Size,
) -> tuple[Any, Any]:
    """The padded tensor with padding_value after each row's length, and the lengths"""
    extent = data.lengths
    rank = ctx.rank(data.padded)
    mask = ctx.unsqueeze(extent.mask, list(range(2, rank)))
    x = ctx.set_sizes(
        choose(ctx, mask, data.padded, padding_value, ctx.dtype(data.padded)),
        ctx.sizes(data.padded),
    )
    fill = ctx.constant(torch.tensor(padding_value).to(dtypes.from_trt(x.dtype)))
    x = extent.stretched(ctx, x, total_length, fill)
    lengths = ctx.tensor(extent.model_lengths, torch.int64)
    return (ctx.permute(x, [1, 0, *range(2, rank)]) if batch_first else x), lengths


def _require_features(ctx: ConversionContext, padded: ITensor) -> None:
    rank = ctx.rank(padded)
    if rank != 3:
        raise Unconvertible(
            f"packed data of rank {rank - 1}; a recurrent layer takes rows of features"
        )


@for_each(*KINDS.items())
def _register(name: str, kind: Kind) -> None:
    @converter(
        f"aten::{name}.data", when=(dropout_in_training, _packed_here), packed=_PACKED
    )
    def layer(
        ctx: ConversionContext,
        node: Node,
        data: Rows,
        hx: ITensor | list[ITensor],
        params: list[Tensor],
        has_biases: bool,
        num_layers: int,
        bidirectional: bool,
    ) -> Any:
        _require_features(ctx, data.padded)
        output, *finals = sequence(
            ctx,
            kind.cell,
            data.padded,
            state_of(hx),
            weights_of(params, has_biases, num_layers, bidirectional),
            states=reads_states(node),
            extent=data.lengths,
        )
        return Rows(output, data.lengths), *finals

    layer.__doc__ = f"{module_of(name)} of a PackedSequence"


@converter("aten::pad_sequence")
def pad_sequence(
    ctx: ConversionContext,
    sequences: list[ITensor],
    batch_first: bool,
    padding_value: float,
    padding_side: str,
) -> ITensor:
    """The sequences [steps, ...] stacked, each padded with padding_value to the longest"""
    longest = ctx.size(sequences[0], 0)
    for item in sequences[1:]:
        longest = ctx.maximum(longest, ctx.size(item, 0))
    fill = ctx.constant(
        torch.tensor(padding_value).to(dtypes.from_trt(sequences[0].dtype))
    )
    axis = 0 if batch_first else 1
    padded = (
        _lengthened(ctx, item, longest, fill, padding_side == "left")
        for item in sequences
    )
    return ctx.concatenate([ctx.unsqueeze(item, [axis]) for item in padded], axis)


def _lengthened(
    ctx: ConversionContext, x: ITensor, steps: Size, fill: ITensor, in_front: bool
) -> ITensor:
    length, *others = ctx.sizes(x)
    if same_size(length, steps):
        return x
    first = length - steps if in_front else 0
    starts = [first] + [0] * len(others)
    return ctx.slice(x, starts, [steps, *others], mode="FILL", fill=fill)
