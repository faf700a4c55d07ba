"""Fake quantization: rounding to multiples of `scale`, clamped to an integer range around a zero
point.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from builder.conversion import quantized
from builder.conversion.context import ConversionContext
from builder.conversion.layers import activate, combine
from builder.conversion.nested import is_unknown
from builder.conversion.precision import REDUCED
from builder.conversion.quantized import FP8, INT8
from builder.conversion.registry import converter
from builder.conversion.values import Operand, Tensor
from builder.engine import ITensor
from builder.graph_types import Node
from builder.lowering import FP8_SCHEMA, fake_quantize_fp8

NOTE = (
    "IQuantizeLayer and IDequantizeLayer if the range relative to the zero point is within "
    "-128..127; others are rounded in float"
)


@converter(
    "aten::fake_quantize_per_tensor_affine",
    "aten::fake_quantize_per_tensor_affine.tensor_qparams",
    note=NOTE,
    folds=False,
)
def per_tensor(
    ctx: ConversionContext,
    node: Node,
    x: Tensor,
    scale: Operand,
    zero_point: Operand,
    quant_min: int,
    quant_max: int,
) -> Any:
    """(clamp(round(x / scale) + zero_point, quant_min, quant_max) - zero_point) * scale"""
    if is_unknown(scale) or is_unknown(zero_point):
        return _rounded_by_tensors(
            ctx,
            x,
            _as_scalar(ctx, scale),
            _as_scalar(ctx, zero_point),
            quant_min,
            quant_max,
        )
    scale = torch.as_tensor(scale, dtype=torch.float32).reshape(-1)[0]
    zero_point = torch.as_tensor(zero_point).reshape(-1)[0].float()
    if isinstance(x, torch.Tensor):
        x = torch.fake_quantize_per_tensor_affine(
            x, float(scale), int(zero_point), quant_min, quant_max
        )
        if _folds(node):
            return x
    return fake_quantize(ctx, node, x, scale, zero_point, quant_min, quant_max, None)


@converter(
    "aten::fake_quantize_per_channel_affine",
    constants=("scale", "zero_point"),
    note=NOTE,
    folds=False,
)
def per_channel(
    ctx: ConversionContext,
    node: Node,
    x: Tensor,
    scale: Any,
    zero_point: Any,
    axis: int,
    quant_min: int,
    quant_max: int,
) -> Any:
    """fake_quantize_per_tensor_affine with one scale and zero point for each index of an axis"""
    axis = ctx.axis(x, axis)
    view = _view(ctx, x, axis)
    if is_unknown(scale) or is_unknown(zero_point):
        scale, zero_point = (
            ctx.reshape(
                ctx.tensor(tensor), [tensor.shape[0] if n < 0 else n for n in view]
            )
            for tensor in (scale, zero_point)
        )
        return _rounded_by_tensors(ctx, x, scale, zero_point, quant_min, quant_max)
    if isinstance(x, torch.Tensor):
        x = torch.fake_quantize_per_channel_affine(
            x, scale, zero_point, axis, quant_min, quant_max
        )
        if _folds(node):
            return x
    return fake_quantize(
        ctx, node, x, scale.float(), zero_point.float(), quant_min, quant_max, axis
    )


def _has_fp8(ctx: ConversionContext, call: SimpleNamespace) -> str | None:
    """Refuses a TensorRT without FP8, and GPUs before compute capability 8.9"""
    return quantized.missing(FP8)


@converter(FP8_SCHEMA, when=_has_fp8, note="what `precision: fp8` inserts", folds=False)
def fp8(
    ctx: ConversionContext, node: Node, x: Tensor, scale: torch.Tensor, axis: int | None
) -> Any:
    """float8_e4m3(clamp(x / scale, -448, 448)) * scale, one scale, or one for each index of an
    axis
    """
    if isinstance(x, torch.Tensor):
        x = fake_quantize_fp8(x, scale, axis)
    if isinstance(x, torch.Tensor) and _folds(node):
        return x
    return _pair(ctx, node, x, scale, axis, FP8)


def _folds(node: Node) -> bool:
    """Whether a static tensor, which torch rounds at build time, needs no layers.

    Only products need the pair of layers. The pair then rounds values that are already on the grid,
    so that TensorRT's x / scale and torch's x * (1 / scale) agree. Unrounded values could differ:
    torch's scales are the largest weight over 127.5, which puts steps on the rounding border.
    """
    return not any(_operator(reader) in REDUCED for reader in readers(node))


def readers(node: Node) -> Iterator[Any]:
    """The users of the node's output. For a `dequantize`, which is a no-op here, the users of its
    output.
    """
    for use in node.output().uses():
        if use.user.kind() == "aten::dequantize":
            yield from readers(use.user)
        else:
            yield use.user


def _operator(node: Node) -> str:
    return str(node.kind()).rpartition("::")[2]


def _as_scalar(ctx: ConversionContext, value: Operand) -> ITensor:
    """A scale or zero point as a tensor of rank 0."""
    tensor = ctx.tensor(value)
    if ctx.rank(tensor):
        return ctx.reshape(tensor, [])
    return tensor


def _view(ctx: ConversionContext, x: Tensor, axis: int | None) -> list[int]:
    if axis is not None:
        return [-1 if i == axis else 1 for i in range(ctx.rank(x))]
    return []


def fake_quantize(
    ctx: ConversionContext,
    node: Node,
    x: Tensor,
    scale: torch.Tensor,
    zero: torch.Tensor,
    low: int,
    high: int,
    axis: int | None,
) -> Any:
    """Fake quantization with static scales and zero points. The result depends only on the range
    relative to the zero point.
    """
    view = _view(ctx, x, axis)
    least, most = low - zero, high - zero
    within = quantized.is_int8(least, most)
    if not within:
        ctx.warn(
            f"the range {low}..{high} around {int(zero.flatten()[0])} does not fit int8 around 0: "
            "rounded in float"
        )
    if not (within and _takes(ctx, x, axis)):
        bounds = scale.reshape(view), least.reshape(view), most.reshape(view)
        return x if isinstance(x, torch.Tensor) else _rounded(ctx, x, *bounds)
    narrow = bool((least > -128).any() or (most < 127).any())
    if isinstance(x, torch.Tensor) or not narrow:
        return _pair(ctx, node, x, scale, axis, INT8)
    # which saturates below the int8 range
    limits = (scale * least).reshape(view), (scale * most).reshape(view)
    # the same values, but without the pair of layers before a product
    if not ctx.capabilities.takes("QUANTIZE.CLIPPED", "FLOAT"):
        return _limited(ctx, _pair(ctx, node, x, scale, axis, INT8), *limits)
    return _pair(ctx, node, _limited(ctx, x, *limits), scale, axis, INT8)


def _takes(ctx: ConversionContext, x: Tensor, axis: int | None) -> bool:
    """Whether the pair of layers can be used: not for rank 0. Some versions support only one scale
    for computed tensors, and treat half as a hint, so that a half tensor might be quantized from
    float32.
    """
    if not ctx.rank(x):
        return False
    if (
        axis is not None
        and not isinstance(x, torch.Tensor)
        and not ctx.capabilities.takes("QUANTIZE.CHANNELS", "FLOAT")
    ):
        return False
    return ctx.dtype(x) == torch.float32 or ctx.capabilities.half_scales


def _pair(
    ctx: ConversionContext,
    node: Node,
    x: Tensor,
    scale: torch.Tensor,
    axis: int | None,
    dtype: torch.dtype,
) -> ITensor:
    """Quantize, and dequantize to the dtype of the products that follow. A tensor that the
    precision policy made half is quantized directly. A tensor that the module made half is widened
    first, because a scale rounded to half moves values to other steps. For a scale beyond half, the
    products compute in float32.
    """
    dtype_of_x = ctx.dtype(x)
    computed = _computed(ctx, node, x)
    half = _policy_half(ctx)
    if half and not all(
        quantized.fits(scale, candidate) for candidate in (dtype_of_x, computed)
    ):
        ctx.warn(
            f"a scale of {_extreme(scale):.3g} is beyond {half}: quantized in float32"
        )
        half = None
        computed = torch.float32
    if half and half in (dtype_of_x, computed):
        scale = scale.to(half).float()  # both layers must use the same grid
    elif not isinstance(x, torch.Tensor):
        x = ctx.cast(x, torch.float32)
    result = quantized.dequantize(
        ctx, quantized.quantize(ctx, x, scale, axis, dtype), computed
    )
    wide = computed == torch.float32 and dtype_of_x != torch.float32
    if wide and not _only_products(node):
        return ctx.cast(result, dtype_of_x)
    return result


def _only_products(node: Node) -> bool:
    return all(_operator(reader) in REDUCED for reader in readers(node))


def _computed(ctx: ConversionContext, node: Node, x: Tensor) -> torch.dtype:
    """The policy's half dtype if only products use the result; else the dtype of x."""
    half = _policy_half(ctx)
    return half if half and _only_products(node) else ctx.dtype(x)


def _policy_half(ctx: ConversionContext) -> torch.dtype | None:
    """The policy's half dtype, if half tensors can be quantized directly."""
    if not ctx.capabilities.half_scales:
        return None
    half: torch.dtype | None = ctx.walker.backend.policy.half
    return half


def _extreme(scale: torch.Tensor) -> float:
    """The scale with the largest distance from 1."""
    return float(scale.flatten()[scale.log().abs().argmax()])


def _limited(
    ctx: ConversionContext, x: ITensor, low: torch.Tensor, high: torch.Tensor
) -> ITensor:
    if low.numel() == 1:
        return activate(ctx, x, "CLIP", float(low), float(high))
    return combine(ctx, "MIN", combine(ctx, "MAX", x, low), high)


def _rounded(
    ctx: ConversionContext,
    x: ITensor,
    scale: torch.Tensor,
    least: torch.Tensor,
    most: torch.Tensor,
) -> ITensor:
    """Rounding in float: clamp(round(x * (1 / scale)), least, most) * scale, as in PyTorch's
    kernel.
    """
    x, dtype = ctx.tensor(x), ctx.dtype(x)
    steps = ctx.unary(
        "ROUND", combine(ctx, "PROD", ctx.cast(x, torch.float32), 1 / scale)
    )
    return ctx.cast(
        combine(ctx, "PROD", _limited(ctx, steps, least, most), scale), dtype
    )


def _rounded_by_tensors(
    ctx: ConversionContext, x: Tensor, scale: Tensor, zero: Tensor, low: int, high: int
) -> ITensor:
    """The same for scales and zero points computed by the network."""
    x, dtype = ctx.tensor(x), ctx.dtype(x)
    inverse = combine(ctx, "DIV", 1.0, scale)
    steps = ctx.unary(
        "ROUND", combine(ctx, "PROD", ctx.cast(x, torch.float32), inverse)
    )
    zero = ctx.cast(ctx.tensor(zero), torch.float32)
    shifted = combine(
        ctx,
        "MIN",
        combine(ctx, "MAX", combine(ctx, "SUM", steps, zero), float(low)),
        float(high),
    )
    return ctx.cast(
        combine(ctx, "PROD", combine(ctx, "SUB", shifted, zero), scale), dtype
    )
