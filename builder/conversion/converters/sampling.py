"""Grid sampling, and affine grids."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.select import select_index
from builder.conversion.dynamic import DynamicScalar, Size
from builder.conversion.layers import HALVES
from builder.conversion.registry import converter
from builder.conversion.spatial import iota
from builder.engine import ITensor, trt

GRID_MODES = ("LINEAR", "NEAREST", "CUBIC")
GRID_PADDING = ("FILL", "CLAMP", "REFLECT")


def _half(ctx: ConversionContext, call: SimpleNamespace) -> str | None:
    if ctx.policy_half or ctx.dtype(call.input) not in HALVES:
        return None
    return (
        "PyTorch rounds positions in the image to half precision on the CPU, and TensorRT does"
        " not: sample in float32"
    )


@converter(
    *(
        f"aten::{name}"
        for name in ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
    ),
    when=_half,
)
def grid_sampler(
    ctx: ConversionContext,
    x: ITensor,
    grid: ITensor,
    interpolation_mode: int,
    padding_mode: int,
    align_corners: bool,
) -> ITensor:
    """The input sampled at the positions of `grid`, from -1 to 1; one IGridSampleLayer"""
    layer = ctx.net.add_grid_sample(x, grid)
    if layer is None:
        raise Unconvertible(
            f"this TensorRT has no grid sampling with {ctx.rank(x) - 2} spatial axes"
        )
    layer.interpolation_mode = getattr(
        trt.InterpolationMode, GRID_MODES[interpolation_mode]
    )
    layer.sample_mode = getattr(trt.SampleMode, GRID_PADDING[padding_mode])
    layer.align_corners = align_corners
    exprs = [*ctx.exprs(x)[:2], *ctx.exprs(grid)[1:-1]]
    return ctx.set_sizes(layer.get_output(0), exprs)


@converter("aten::affine_grid_generator")
def affine_grid(
    ctx: ConversionContext, theta: ITensor, size: Sequence[Size], align_corners: bool
) -> ITensor:
    """[x, y, (z,) 1] @ theta^T for every position of an image of `size`"""
    spatial = list(size)[2:]
    axes = len(spatial)
    if any(isinstance(length, DynamicScalar) for length in spatial):
        return _dynamic_grid(ctx, theta, spatial, align_corners)
    identity = torch.eye(axes, axes + 1)[None]
    sizes = [1, 1, *spatial]
    grid = torch.ops.aten.affine_grid_generator(identity, sizes, align_corners)
    grid = grid.reshape(1, -1, axes)
    ones = torch.ones_like(grid[..., :1])
    base = ctx.constant(torch.cat([grid, ones], -1).to(ctx.dtype(theta)))
    none = trt.MatrixOperation.NONE
    transpose = trt.MatrixOperation.TRANSPOSE
    layer = ctx.net.add_matrix_multiply(base, none, theta, transpose)
    rows = layer.get_output(0)
    ctx.set_sizes(rows, [ctx.expr(theta, 0), grid.shape[1], axes])
    return ctx.reshape(rows, [ctx.size(theta, 0), *spatial, axes])


def _dynamic_grid(
    ctx: ConversionContext, theta: ITensor, spatial: list[Size], align_corners: bool
) -> ITensor:
    """[n, (d,) h, w, axis]: the sum over axes of a column of theta times the coordinate."""
    axes = len(spatial)
    columns = [
        ctx.unsqueeze(select_index(ctx, theta, 2, axis), list(range(1, axes + 1)))
        for axis in range(axes + 1)
    ]
    total = columns.pop()
    for axis, column in enumerate(columns):
        position = axes - 1 - axis  # x is the last spatial axis
        row = _coordinates(ctx, spatial[position], align_corners, ctx.dtype(theta))
        others = [at for at in range(axes + 2) if at != position + 1]
        product = ctx.elementwise("PROD", column, ctx.unsqueeze(row, others))
        total = ctx.elementwise("SUM", product, total)
    return ctx.set_sizes(total, [ctx.size(theta, 0), *spatial, axes])


def _coordinates(
    ctx: ConversionContext, length: Size, align_corners: bool, dtype: torch.dtype
) -> ITensor:
    """From -1 to 1, the centers of `length` pixels or, with `align_corners`, their corners. One
    pixel is at 0.
    """
    last = length - 1
    twice = ctx.elementwise("PROD", *ctx.operands(iota(ctx, length), 2))
    from_center = ctx.elementwise("SUB", *ctx.operands(twice, last))
    steps = ctx.maximum(last, 1) if align_corners else length
    numbers = ctx.operands(from_center, steps, dtype=torch.float32)
    return ctx.cast(ctx.elementwise("DIV", *numbers), dtype)
