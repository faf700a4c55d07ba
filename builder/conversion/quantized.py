"""IQuantizeLayer and IDequantizeLayer: quantize a tensor to 8 bits, and dequantize it to the
compute dtype.

TensorRT computes a convolution or product in 8 bits if the pair precedes it. A scale has the dtype
of the floating-point side of its layer ("Data Types" of the operators Quantize and Dequantize), or
is float32 if TensorRT has no half scales. Zero points are always 0.
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


INT8 = torch.int8
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Quantized:
    """A tensor of 8-bit values and their scale: float32, rank 0, or rank 1 with one for each index
    of `axis`.
    """

    tensor: Any
    scale: torch.Tensor
    axis: int | None


def missing(dtype: torch.dtype) -> str | None:
    """Why this TensorRT has no quantization to `dtype`, or None."""
    return fp8.missing() if dtype == FP8 else None


def fits(scale: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the floating-point dtype represents each scale to within 1/256: half a step of the
    outermost of 127 levels.
    """
    return bool(((scale.to(dtype).float() / scale - 1).abs() < 2**-8).all())


def is_int8(least: torch.Tensor, most: torch.Tensor) -> bool:
    """Whether a range relative to its zero points is within that of int8."""
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
    source_dtype = torch.float32
    if not isinstance(x, torch.Tensor):
        source_dtype = ctx.dtype(x)
    factor = ctx.constant(scale.to(source_dtype))
    layer = ctx.net.add_quantize(
        ctx.tensor(x, source_dtype), factor, dtypes.to_trt(dtype)
    )
    if axis is not None:
        layer.axis = axis
    return Quantized(
        ctx.copy_sizes(layer.get_input(0), layer.get_output(0)), scale, axis
    )


def dequantize(
    ctx: ConversionContext, quantized: Quantized, dtype: torch.dtype
) -> ITensor:
    """values * scale in the floating-point dtype. The quantized tensor is recorded."""
    factor = ctx.constant(quantized.scale.to(dtype))
    layer = ctx.net.add_dequantize(quantized.tensor, factor, dtypes.to_trt(dtype))
    if quantized.axis is not None:
        layer.axis = quantized.axis
    result = ctx.copy_sizes(quantized.tensor, layer.get_output(0))
    ctx.facts(result).quantized = quantized
    return result


def dequantize_again(
    ctx: ConversionContext, tensor: ITensor, dtype: torch.dtype
) -> ITensor | None:
    """Dequantize a dequantized tensor again to another dtype, because a cast after it would hide
    the pair from TensorRT. None if the tensor is not dequantized, or its scale does not fit the
    dtype.
    """
    quantized = ctx.facts(tensor).quantized
    if quantized and fits(quantized.scale, dtype):
        return dequantize(ctx, quantized, dtype)
    return None
