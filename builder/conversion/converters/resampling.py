"""Upsampling and interpolation, axis by axis if TensorRT's layer differs from PyTorch.

IResizeLayer always maps positions by the ratio of the two lengths. PyTorch uses the scale factor,
which differs if `length * factor` is not an integer. In this case, and for antialiasing, PyTorch's
interpolation of an identity matrix gives the weights for one axis, and the network multiplies by
that matrix or gathers by its indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import frexp
from typing import Any

import sympy
import torch

from builder.conversion import doubles
from builder.conversion.arguments import dynamic_value
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar, Size, bounds, expression
from builder.conversion.interpolation import (
    CUBIC,
    CUBIC_AA,
    EXACT,
    LINEAR,
    LINEAR_AA,
    NEAREST,
    NEAREST_2D,
    Method,
    is_exact,
    repeats,
    selected_indices,
    taps,
)
from builder.conversion.layers import (
    choose,
    combine,
    gathered,
    less,
    matmul_along,
)
from builder.conversion.registry import converter, for_each
from builder.conversion.spatial import filled
from builder.engine import ITensor, trt

OPERATORS = (
    ("upsample_nearest1d", NEAREST, 1),
    ("upsample_nearest2d", NEAREST_2D, 2),
    ("upsample_nearest3d", NEAREST, 3),
    *((f"_upsample_nearest_exact{axes}d", EXACT, axes) for axes in (1, 2, 3)),
    ("upsample_linear1d", LINEAR, 1),
    ("upsample_bilinear2d", LINEAR, 2),
    ("upsample_trilinear3d", LINEAR, 3),
    ("upsample_bicubic2d", CUBIC, 2),
    ("_upsample_bilinear2d_aa", LINEAR_AA, 2),
    ("_upsample_bicubic2d_aa", CUBIC_AA, 2),
)
"""The name, the method and the number of axes."""


@for_each(*OPERATORS)
def _register_by_size(name: str, method: Method, axes: int) -> None:
    @converter(f"aten::{name}")
    def to_size(
        ctx: ConversionContext, x: ITensor, output: Size | list[Size], *options: Any
    ) -> ITensor:
        if method.mode == "NEAREST":
            return resample(ctx, x, method, filled(output, axes), options)
        aligned, *scales = options
        return resample(ctx, x, method.aligned(aligned), filled(output, axes), scales)


@for_each(*OPERATORS)
def _register_by_size_or_scale(name: str, method: Method, axes: int) -> None:
    @converter(f"aten::{name}.vec")
    def to_size_or_scale(
        ctx: ConversionContext, x: ITensor, output: list[Size] | None, *options: Any
    ) -> ITensor:
        chosen = method
        if method.mode != "NEAREST":
            chosen = method.aligned(options[0])
        scales = [None] * axes if options[-1] is None else filled(options[-1], axes)
        if output is not None:
            return resample(ctx, x, chosen, filled(output, axes), scales)
        sizes = [
            scaled_length(ctx, ctx.size(x, axis), float(scale or 1))
            for axis, scale in enumerate(scales, -axes)
        ]
        return resample(ctx, x, chosen, sizes, scales)


def scaled_length(ctx: ConversionContext, length: Size, scale: float) -> Size:
    """floor(length * scale) in double precision, as PyTorch computes output sizes."""
    if isinstance(length, int):
        return int(length * scale)
    ratio = Fraction(scale)
    if ratio.denominator <= 512 and scale < 1024:
        # 2, 0.5, 1.25: exact for every length
        scaled = length * ratio.numerator
        return scaled // ratio.denominator  # type: ignore[no-any-return]
    table = doubles.of_length(ctx, length)
    if table is None:
        raise dynamic_value("the length of a resampled axis", length)
    return doubles.truncated(ctx, replace(table, values=table.values * scale))


def longest(ctx: ConversionContext, length: DynamicScalar) -> int:
    """The largest value of a size over all profiles."""
    span = bounds(length.expr, ctx.ranges())
    if span is None or span[1] == float("inf"):
        raise dynamic_value("the length of a resampled axis", length)
    return int(span[1]) + 1


def resample(
    ctx: ConversionContext,
    x: ITensor,
    method: Method,
    sizes: Sequence[Size],
    scales: Sequence[float | None],
) -> ITensor:
    """The last axes resampled to `sizes`. Axes that IResizeLayer computes as PyTorch does share one
    layer; the others are computed one by one.
    """
    first = ctx.rank(x) - len(sizes)
    factors: list[float | None] = []
    for scale in scales:
        if scale is None or scale <= 0 or method.align:
            factors.append(None)
        else:
            factors.append(float(scale))
    plain: dict[int, Size] = {}
    for i, (size, factor) in enumerate(zip(sizes, factors, strict=True)):
        axis = first + i
        length = ctx.size(x, axis)
        if expression(length) == expression(size) and factor in (None, 1.0):
            continue
        if _resizes(ctx, x, method, length, size, factor):
            plain[axis] = size
        else:
            x = _singly(ctx, x, method, axis, size, factor)
    if plain:
        return _resize(ctx, x, method, plain)
    return x


def _resizes(
    ctx: ConversionContext,
    x: ITensor,
    method: Method,
    length: Size,
    size: Size,
    factor: float | None,
) -> bool:
    """Whether IResizeLayer's ratio of lengths and its rounding match PyTorch."""
    if method.antialias or not ctx.dtype(x).is_floating_point:
        return False
    if factor is not None and expression(length) * Fraction(factor) != expression(size):
        return False
    if method.mode != "NEAREST":
        return True
    if isinstance(length, int) and isinstance(size, int):
        return (size % length == 0 or length % size == 0) and is_exact(
            method, length, size, factor
        )
    if factor is None or frexp(factor)[0] == 0.5:
        # any ratio may occur at run time; positions are exact if the factor is a power of two
        return True
    bound = size if isinstance(size, int) else longest(ctx, size)
    return factor == int(factor) and is_exact(
        method, max(bound // int(factor), 1), bound, factor
    )


def _resize(
    ctx: ConversionContext, x: ITensor, method: Method, plain: dict[int, Size]
) -> ITensor:
    layer = ctx.net.add_resize(x)
    layer.resize_mode = getattr(trt.InterpolationMode, method.mode)
    layer.coordinate_transformation = getattr(
        trt.ResizeCoordinateTransformation, method.coordinates
    )
    layer.nearest_rounding = getattr(trt.ResizeRoundMode, method.rounding)
    if method.mode == "CUBIC":
        layer.cubic_coeff = -0.75
    sizes = [plain.get(axis, size) for axis, size in enumerate(ctx.sizes(x))]
    if all(isinstance(size, int) for size in sizes):
        layer.shape = trt.Dims(sizes)
    elif (scales := _whole_scales(ctx, x, sizes)) is not None:
        layer.scales = scales
    else:
        layer.set_input(1, ctx.shape_tensor(sizes))
    return ctx.set_sizes(layer.get_output(0), sizes)


def _whole_scales(
    ctx: ConversionContext, x: ITensor, sizes: Sequence[Size]
) -> list[float] | None:
    """Factors for all axes, if all are integers, so that no shape has to be computed."""
    ratios = [
        sympy.cancel(expression(size) / ctx.expr(x, axis))
        for axis, size in enumerate(sizes)
    ]
    if all(ratio.is_Integer for ratio in ratios):
        return [float(ratio) for ratio in ratios]
    return None


def _singly(
    ctx: ConversionContext,
    x: ITensor,
    method: Method,
    axis: int,
    size: Size,
    factor: float | None,
) -> ITensor:
    if method.mode != "NEAREST" and not ctx.dtype(x).is_floating_point:
        raise Unconvertible(
            f"{method.aten} of {ctx.dtype(x)} uses a rounding that no TensorRT layer supports"
        )
    length = ctx.size(x, axis)
    if isinstance(length, int) and isinstance(size, int):
        return _static(ctx, x, method, axis, length, size, factor)
    if factor is None or method.antialias:
        unknown = next(n for n in (length, size) if isinstance(n, DynamicScalar))
        raise dynamic_value(
            f"the length of axis {axis}, which {method.aten} resamples,", unknown
        )
    return _resampled_by_table(ctx, x, method, axis, size, factor)


def _static(
    ctx: ConversionContext,
    x: ITensor,
    method: Method,
    axis: int,
    length: int,
    size: int,
    factor: float | None,
) -> ITensor:
    if method.mode == "NEAREST":
        return gathered(ctx, x, selected_indices(method, length, size, factor), axis)
    # the rows are the responses to one element each
    matrix = method.on_axis(torch.eye(length), size, factor)
    return matmul_along(ctx, matrix.t().contiguous().to(ctx.dtype(x)), x, axis)


def _resampled_by_table(
    ctx: ConversionContext,
    x: ITensor,
    method: Method,
    axis: int,
    size: Size,
    factor: float,
) -> ITensor:
    """An explicit factor on a dynamic axis.

    Element i depends on the length only if an index is past the end. The indices and weights for
    the largest profile are therefore constants, which are sliced to the size and clamped to the
    end.
    """
    most = size if isinstance(size, int) else longest(ctx, size)
    last = ctx.size(x, axis) - 1
    parts = []
    for index, weight in _taps(ctx, method, most, ctx.size(x, axis), factor):
        index_part = ctx.slice(index, [0], [size])
        part = gathered(ctx, x, combine(ctx, "MIN", index_part, last), axis)
        if method.mode != "NEAREST":
            view: list[Size] = [1] * ctx.rank(x)
            view[axis] = size
            row = ctx.slice(ctx.cast(weight, ctx.dtype(x)), [0], [size])
            part = ctx.elementwise("PROD", part, ctx.reshape(row, view))
        parts.append(part)
    result = parts[0]
    for part in parts[1:]:
        result = ctx.elementwise("SUM", result, part)
    sizes = ctx.exprs(x)
    sizes[axis] = expression(size)
    return ctx.set_sizes(result, sizes)


def _taps(
    ctx: ConversionContext, method: Method, most: int, length: Size, factor: float
) -> list[tuple[ITensor, ITensor]]:
    """The indices and weights of each tap: those of the factor, or those of repeated elements if
    the axis is short.
    """
    by_factor = [
        (ctx.constant(index), ctx.constant(weight))
        for index, weight in zip(*taps(method, most, factor), strict=True)
    ]
    ratio = repeats(method, factor)
    shortest = bounds(expression(length), ctx.ranges())
    if ratio is None or shortest is None:
        return by_factor
    longer = (n for n in range(2, most + 3) if int(n * factor) != ratio * n)
    limit = next(longer, most + 3)  # no length in the profiles is longer than `most`
    if shortest[0] >= limit:
        return by_factor
    is_short = less(ctx, length, limit)
    index = torch.arange(most) // ratio
    return [
        (
            choose(ctx, is_short, index, index_by_factor),
            choose(ctx, is_short, float(number == 0), weight, torch.float32),
        )
        for number, (index_by_factor, weight) in enumerate(by_factor)
    ]
