"""Grid sampling, and affine grids."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import torch

from builder.conversion.arguments import dynamic_value
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar, Size
from builder.conversion.layers import HALVES
from builder.conversion.registry import converter
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
        f"aten::{name}(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool"
        " align_corners) -> Tensor"
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


@converter(
    "aten::affine_grid_generator(Tensor theta, SymInt[] size, bool align_corners) -> Tensor",
    dynamic=("size",),
)
def affine_grid(
    ctx: ConversionContext, theta: ITensor, size: Sequence[Size], align_corners: bool
) -> ITensor:
    """[x, y, (z,) 1] @ theta^T for every position of an image of `size`"""
    spatial = list(size)[2:]
    axes = len(spatial)
    for length in spatial:
        if isinstance(length, DynamicScalar):
            raise dynamic_value("the size of an affine grid", length)
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
