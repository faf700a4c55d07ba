"""IQuantizeLayer and IDequantizeLayer: how a tensor is rounded to 8 bits, and read back in the
dtype that computes.

TensorRT takes the pair in front of a convolution or a product as the order to compute it in 8 bits.
A scale has the dtype of the floating side of its layer ("Data Types" of the operators Quantize and
Dequantize), or is float32 where TensorRT has no half scales. Zero points are 0 everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from builder.conversion import dtypes
from builder.conversion.values import Tensor
from builder.engine import ITensor, fp8

if TYPE_CHECKING:
    from builder.conversion.context import ConversionContext


INT8, FP8 = torch.int8, torch.float8_e4m3fn


@dataclass(frozen=True)
class Quantized:
    """A tensor of 8-bit values and their scale: float32, rank 0, or rank 1 with one for each place
    of `axis`.
    """

    tensor: Any
    scale: torch.Tensor
    axis: int | None


def missing(dtype: torch.dtype) -> str | None:
    """Why this TensorRT has no quantization to `dtype`; None where it has."""
    return fp8.missing() if dtype == FP8 else None


def fits(scale: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the floating dtype holds each scale to within 1/256: half a step of the outmost of
    127 levels.
    """
    return bool(((scale.to(dtype).float() / scale - 1).abs() < 2**-8).all())


def is_int8(least: torch.Tensor, most: torch.Tensor) -> bool:
    """Whether the ends of a range, as seen from its zero points, lie within int8's around 0."""
    return bool(least.min() >= -128 and most.max() <= 127)


def quantize(
    ctx: ConversionContext,
    x: Tensor,
    scale: torch.Tensor,
    axis: int | None,
    dtype: torch.dtype = INT8,
) -> Quantized:
    """round(x / scale), ties to even, saturated, in the 8-bit dtype; x an ITensor or a static
    torch.Tensor.
    """
    own = ctx.dtype(x) if not isinstance(x, torch.Tensor) else torch.float32
    factor = ctx.constant(scale.to(own))
    layer = ctx.net.add_quantize(ctx.tensor(x, own), factor, dtypes.to_trt(dtype))
    if axis is not None:
        layer.axis = axis
    return Quantized(ctx.copy_sizes(layer.get_input(0), layer.get_output(0)), scale, axis)


def dequantize(ctx: ConversionContext, quantized: Quantized, dtype: torch.dtype) -> ITensor:
    """values * scale in the floating dtype; the tensor remembers what it was read from."""
    factor = ctx.constant(quantized.scale.to(dtype))
    layer = ctx.net.add_dequantize(quantized.tensor, factor, dtypes.to_trt(dtype))
    if quantized.axis is not None:
        layer.axis = quantized.axis
    result = ctx.copy_sizes(quantized.tensor, layer.get_output(0))
    ctx.facts(result).quantized = quantized
    return result


def again(ctx: ConversionContext, tensor: ITensor, dtype: torch.dtype) -> ITensor | None:
    """A dequantized tensor read back in another dtype: a cast behind it would hide it from
    TensorRT. None where the tensor is not dequantized, or its scale does not fit the dtype.
    """
    quantized = ctx.facts(tensor).quantized
    return dequantize(ctx, quantized, dtype) if quantized and fits(quantized.scale, dtype) else None
