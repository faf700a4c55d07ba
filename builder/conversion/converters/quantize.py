"""Fake quantisation: rounding to a grid of `scale`, clamped to the integers of a range around a zero point."""

from __future__ import annotations

from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.layers import activate, combine
from builder.conversion.registry import converter
from builder.engine.flavour import trt


@converter(
    "aten::fake_quantize_per_tensor_affine(Tensor self, float scale, int zero_point, int quant_min, int quant_max)"
    " -> Tensor",
    "aten::fake_quantize_per_tensor_affine.tensor_qparams(Tensor self, Tensor scale, Tensor zero_point, int quant_min, "
    "int quant_max) -> Tensor",
    constants=("scale", "zero_point"),
    dynamic=("scale", "zero_point"),
    note="a zero point of 0 is IQuantizeLayer and IDequantizeLayer; others are rounded in float",
)
def per_tensor(ctx: ConversionContext, node: Any, x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    """(clamp(round(x / scale) + zero_point, quant_min, quant_max) - zero_point) * scale"""
    if _unknown(scale) or _unknown(zero):
        return _rounded_by_tensors(ctx, x, _one(ctx, scale), _one(ctx, zero), low, high)
    scale = torch.as_tensor(scale, dtype=torch.float32).reshape(-1)[0]
    return fake_quantize(ctx, x, scale, int(torch.as_tensor(zero).reshape(-1)[0]), low, high, None)


@converter(
    "aten::fake_quantize_per_channel_affine(Tensor self, Tensor scale, Tensor zero_point, int axis, int quant_min, "
    "int quant_max) -> Tensor",
    constants=("scale", "zero_point"),
    note="zero points of 0 are IQuantizeLayer and IDequantizeLayer; others are rounded in float",
)
def per_channel(
    ctx: ConversionContext, node: Any, x: Any, scale: Any, zero: Any, axis: int, low: int, high: int
) -> Any:
    """The same with one scale and zero point for each place of an axis"""
    axis = ctx.axis(x, axis)
    view = [-1 if i == axis else 1 for i in range(ctx.rank(x))]
    if _unknown(scale) or _unknown(zero):
        scale, zero = (ctx.reshape(ctx.tensor(t), [t.shape[0] if n < 0 else n for n in view]) for t in (scale, zero))
        return _rounded_by_tensors(ctx, x, scale, zero, low, high)
    if bool((zero == 0).all()):
        return fake_quantize(ctx, x, scale.float(), 0, low, high, axis)
    return _rounded(ctx, x, scale.float().reshape(view), zero.float().reshape(view), low, high)


def _unknown(value: Any) -> bool:
    return isinstance(value, DynamicScalar) or hasattr(value, "is_network_input")


def _one(ctx: ConversionContext, value: Any) -> Any:
    """A scale or zero point as a tensor of rank 0."""
    tensor = ctx.tensor(value)
    return ctx.reshape(tensor, []) if ctx.rank(tensor) else tensor


def fake_quantize(
    ctx: ConversionContext, x: Any, scale: torch.Tensor, zero: int, low: int, high: int, axis: int | None
) -> Any:
    """Static scales: quantise and dequantise layers where TensorRT's int8 (zero point 0) holds the range."""
    view = [-1 if i == axis else 1 for i in range(ctx.rank(x))] if axis is not None else []
    if zero != 0 or low < -128 or high > 127 or ctx.dtype(x) != torch.float32:
        return _rounded(ctx, x, scale.reshape(view), torch.tensor(float(zero)), low, high)
    if (low, high) != (-128, 127):  # a narrow range saturates before int8 does
        x = _limited(ctx, x, scale.reshape(view) * low, scale.reshape(view) * high)
    factor = ctx.constant(scale)
    quantized = ctx.net.add_quantize(x, factor, *_of("int8"))
    back = ctx.net.add_dequantize(quantized.get_output(0), factor, *_of("float32"))
    for layer in (quantized, back) if axis is not None else ():
        layer.axis = axis
    return ctx.copy_sizes(x, back.get_output(0))


def _of(dtype: str) -> tuple[Any, ...]:
    """The output's dtype, which 8.6 does not ask for: it knows one only."""
    return (getattr(trt, dtype),) if hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED") else ()


def _limited(ctx: ConversionContext, x: Any, low: torch.Tensor, high: torch.Tensor) -> Any:
    if low.numel() == 1:
        return activate(ctx, x, "CLIP", float(low), float(high))
    return combine(ctx, "MIN", combine(ctx, "MAX", x, low), high)


def _rounded(ctx: ConversionContext, x: Any, scale: torch.Tensor, zero: torch.Tensor, low: int, high: int) -> Any:
    """In float: clamp(round(x * (1 / scale)), low - zero, high - zero) * scale, as PyTorch's kernel multiplies."""
    dtype = ctx.dtype(x)
    steps = ctx.unary("ROUND", combine(ctx, "PROD", ctx.cast(x, torch.float32), 1 / scale))
    return ctx.cast(combine(ctx, "PROD", _limited(ctx, steps, low - zero, high - zero), scale), dtype)


def _rounded_by_tensors(ctx: ConversionContext, x: Any, scale: Any, zero: Any, low: int, high: int) -> Any:
    """The same for scales and zero points that the network computes."""
    dtype = ctx.dtype(x)
    inverse = combine(ctx, "DIV", 1.0, scale)
    steps = ctx.unary("ROUND", combine(ctx, "PROD", ctx.cast(x, torch.float32), inverse))
    zero = ctx.cast(ctx.tensor(zero), torch.float32)
    shifted = combine(ctx, "MIN", combine(ctx, "MAX", combine(ctx, "SUM", steps, zero), float(low)), float(high))
    return ctx.cast(combine(ctx, "PROD", combine(ctx, "SUB", shifted, zero), scale), dtype)
