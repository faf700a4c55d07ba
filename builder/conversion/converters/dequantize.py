"""torch's quantized tensors with `dequantize` as their only user: the pair is a fake
quantization.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.converters import quantize
from builder.conversion.registry import converter
from builder.conversion.values import Operand, Tensor
from builder.graph_types import Node

UNPACKED = (
    "export the module as it was trained, before torch.ao.quantization.convert"
    " packs it for the CPU"
)

RANGES = {12: (-128, 127), 13: (0, 255)}
"""The integer range of torch.qint8 and torch.quint8, by TorchScript's number of the dtype
(c10::ScalarType).
"""


def _only_dequantized(ctx: ConversionContext, call: SimpleNamespace) -> str | None:
    """Refuses arithmetic on the integers: packed int8 kernels exist only in torch."""
    others = [
        use.user.kind()
        for use in ctx.node.output().uses()
        if use.user.kind() != "aten::dequantize"
    ]
    if others:
        return f"{others[0]} computes on a quantized tensor of torch; {UNPACKED}"
    if call.dtype not in RANGES:
        return "TensorRT quantizes to int8; this is another integer dtype"
    return None


@converter(
    "aten::quantize_per_tensor",
    "aten::quantize_per_tensor.tensor_qparams",
    when=_only_dequantized,
    note="where only `dequantize` reads it",
    folds=False,
)
def per_tensor(
    ctx: ConversionContext,
    node: Node,
    x: Tensor,
    scale: Operand,
    zero_point: Operand,
    dtype: int,
) -> Any:
    """Together with its dequantize: fake_quantize_per_tensor_affine over the dtype's range"""
    return quantize.per_tensor(ctx, node, x, scale, zero_point, *RANGES[dtype])


@converter(
    "aten::quantize_per_channel",
    when=_only_dequantized,
    note="where only `dequantize` reads it",
    folds=False,
)
def per_channel(
    ctx: ConversionContext,
    node: Node,
    x: Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    axis: int,
    dtype: int,
) -> Any:
    """Together with its dequantize: fake_quantize_per_channel_affine over the dtype's range"""
    return quantize.per_channel(
        ctx, node, x, scales.float(), zero_points.int(), axis, *RANGES[dtype]
    )


@converter("aten::dequantize.self", folds=False)
def dequantize(ctx: ConversionContext, x: Tensor) -> Any:
    """Returns its input, which the quantization before it has already rounded; the values of a
    quantized constant
    """
    if isinstance(x, torch.Tensor) and x.is_quantized:
        return x.dequantize()
    return x
