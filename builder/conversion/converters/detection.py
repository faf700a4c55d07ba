"""torchvision's detection operators, converted if torchvision is imported in this process."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import sympy
import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar, Size
from builder.conversion.layers import choose, combine, comparison, gathered, reduce
from builder.conversion.registry import converter
from builder.engine import ITensor, flavor, trt

MOST_BOXES = 5000
"""The maximum of INMSLayer's topk_box_limit."""


def _absent(ctx: ConversionContext, call: SimpleNamespace) -> str | None:
    if flavor.name() == "tensorrt-rtx":
        return "TensorRT for RTX defines INMSLayer but has no kernel that implements it (1.7)"
    return None


def _too_many(ctx: ConversionContext, call: SimpleNamespace) -> str | None:
    boxes = ctx.size(call.dets, 0)
    if isinstance(boxes, DynamicScalar):
        largest = {symbol: high for symbol, (_, high) in ctx.ranges().items()}
        is_bounded = boxes.expr.free_symbols <= set(largest)
        boxes = int(boxes.expr.subs(largest)) if is_bounded else 0
    if boxes > MOST_BOXES:
        return (
            f"INMSLayer supports at most {MOST_BOXES} boxes; the profiles allow {boxes}"
        )
    return None


@converter(
    "torchvision::nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    when=(_absent, _too_many),
    note=(
        "boxes of equal score may come in another order; the number of boxes kept depends on the"
        " data"
    ),
)
def nms(
    ctx: ConversionContext, dets: ITensor, scores: ITensor, iou_threshold: float
) -> ITensor:
    """Non-maximum suppression: the indices of the kept boxes, by descending score; one INMSLayer"""
    count: Size = dets.shape[0]
    if dets.shape[0] < 0:
        count = ctx.scalar(ctx.tensor(ctx.size(dets, 0)))
    if isinstance(count, DynamicScalar):
        most = ctx.reshape(ctx.cast(count.tensor, torch.int32), [])
    else:
        most = ctx.constant(torch.tensor(count, dtype=torch.int32))
    layer = ctx.net.add_nms(
        ctx.unsqueeze(dets, [0]), ctx.unsqueeze(scores, [0, 2]), most
    )
    layer.bounding_box_format = trt.BoundingBoxFormat.CORNER_PAIRS
    layer.topk_box_limit = MOST_BOXES
    layer.set_input(3, ctx.constant(torch.tensor(iou_threshold, dtype=torch.float32)))
    # the layer's default drops scores <= 0
    layer.set_input(4, ctx.constant(torch.tensor(torch.finfo(torch.float32).min)))
    rows = layer.get_output(0)
    indices = gathered(ctx, rows, torch.tensor(2, dtype=torch.int32), 1)
    ctx.set_sizes(
        indices, [sympy.Symbol(f"{indices.name}[0]", integer=True, nonnegative=True)]
    )
    return ctx.cast(indices, torch.int64)


def _adaptive(ctx: ConversionContext, call: SimpleNamespace) -> str | None:
    if call.sampling_ratio > 0:
        return None
    return (
        "without a sampling_ratio the number of samples depends on the data of each box"
    )


@converter(
    "torchvision::roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height,"
    " SymInt pooled_width, int sampling_ratio, bool aligned) -> Tensor",
    when=_adaptive,
    note=(
        "needs a sampling_ratio; composed of a gather of the boxes' images, a grid sample and a"
        " mean"
    ),
)
def roi_align(
    ctx: ConversionContext,
    x: ITensor,
    rois: ITensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> ITensor:
    """The mean of ratio x ratio bilinear samples in each cell of each box (image, x1, y1, x2,
    y2)
    """
    sampling = _Sampling(spatial_scale, sampling_ratio, aligned)
    images = _images(ctx, x, rois)
    ys, inside_y = _sample_positions(
        ctx, rois, (2, 4), sampling, pooled_height, ctx.size(x, 2)
    )
    xs, inside_x = _sample_positions(
        ctx, rois, (1, 3), sampling, pooled_width, ctx.size(x, 3)
    )
    boxes = ctx.size(rois, 0)
    grid = [boxes, pooled_height * sampling_ratio, pooled_width * sampling_ratio]
    samples = _sampled(ctx, images, xs, ys, grid)
    inside_y = ctx.unsqueeze(inside_y, [1, 3])
    inside_x = ctx.unsqueeze(inside_x, [1, 2])
    inside = ctx.elementwise("AND", inside_y, inside_x)
    samples = choose(ctx, inside, samples, 0.0, ctx.dtype(x))
    rows = pooled_height, sampling_ratio
    columns = pooled_width, sampling_ratio
    cells = ctx.reshape(samples, [boxes, x.shape[1], *rows, *columns])
    return reduce(ctx, "AVG", cells, [3, 5])


@dataclass(frozen=True)
class _Sampling:
    """The scale of the boxes, the samples of a cell along one axis, and whether pixels are shifted
    by a half.
    """

    scale: float
    ratio: int
    aligned: bool


def _images(ctx: ConversionContext, x: ITensor, rois: ITensor) -> ITensor:
    """The image of each box."""
    image = ctx.cast(_column(ctx, rois, 0), torch.int32)
    return gathered(ctx, x, ctx.squeeze(image, [1]), 0)


def _sampled(
    ctx: ConversionContext, images: ITensor, xs: ITensor, ys: ITensor, grid: list[Size]
) -> ITensor:
    """[boxes, channels, height, width]: the images of the boxes sampled at xs [boxes, width] and ys
    [boxes, height]; `grid` is [boxes, height, width].
    """
    columns = ctx.expand(ctx.unsqueeze(xs, [1, 3]), [*grid, 1])
    rows = ctx.expand(ctx.unsqueeze(ys, [2, 3]), [*grid, 1])
    layer = ctx.net.add_grid_sample(images, ctx.concatenate([columns, rows], 3))
    if layer is None:
        raise Unconvertible("this TensorRT has no grid sample")
    layer.sample_mode = trt.SampleMode.CLAMP
    layer.align_corners = True
    boxes, height, width = grid
    return ctx.set_sizes(layer.get_output(0), [boxes, images.shape[1], height, width])


def _column(ctx: ConversionContext, rois: ITensor, index: int) -> ITensor:
    """Column `index` of [boxes, 5] as [boxes, 1]."""
    return gathered(ctx, rois, torch.tensor([index], dtype=torch.int32), 1)


def _sample_positions(
    ctx: ConversionContext,
    rois: ITensor,
    columns: tuple[int, int],
    sampling: _Sampling,
    cells: int,
    length: Size,
) -> tuple[Any, Any]:
    """The sample positions of one axis, [boxes, cells * ratio], in grid sampling's range -1 to 1,
    and which samples have a weight.

    Source: torchvision's roi_align_common.h: samples more than one pixel outside have weight 0,
    nearer ones are clamped.
    """
    shift = 0.5 if sampling.aligned else 0.0
    ends = []
    for column in columns:
        scaled = combine(ctx, "PROD", _column(ctx, rois, column), sampling.scale)
        ends.append(combine(ctx, "SUB", scaled, shift))
    start, end = ends
    extent = combine(ctx, "SUB", end, start)
    if not sampling.aligned:
        extent = combine(ctx, "MAX", extent, 1.0)
    count = cells * sampling.ratio
    steps = (torch.arange(count, dtype=torch.float32) + 0.5) / count
    offsets = combine(ctx, "PROD", extent, steps[None].to(ctx.dtype(rois)))
    at = combine(ctx, "SUM", start, offsets)
    not_below = comparison(ctx, "ge", at, -1.0)
    not_above = comparison(ctx, "le", at, length)
    last = ctx.maximum(length - 1, 1)
    share = combine(ctx, "DIV", combine(ctx, "PROD", at, 2.0), last)
    grid = combine(ctx, "SUB", share, 1.0)
    return grid, ctx.elementwise("AND", not_below, not_above)
