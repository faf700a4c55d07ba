"""IResizeLayer and IGridSampleLayer."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from builder.engine import ILayer
from builder.reference.dtypes import along_axis, in_float32
from builder.reference.registry import evaluates

# (index in the output, input's length, output's length) -> position in the input
COORDINATES: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "ALIGN_CORNERS": lambda x, origin, resized: (
        x * ((origin - 1) / (resized - 1) if resized > 1 else 0.0)
    ),
    "ASYMMETRIC": lambda x, origin, resized: x * (origin / resized),
    "HALF_PIXEL": lambda x, origin, resized: (x + 0.5) * (origin / resized) - 0.5,
}
ROUNDINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "HALF_UP": lambda x: torch.floor(x + 0.5),
    "HALF_DOWN": lambda x: torch.ceil(x - 0.5),
    "FLOOR": torch.floor,
    "CEIL": torch.ceil,
}


@evaluates("RESIZE")
@in_float32
def resize(layer: ILayer, x: Tensor, shape: Tensor | None = None) -> Tensor:
    """Resample each axis whose length changes. The lengths come from the second input, else
    `shape`, else `scales`.

    NEAREST takes one value, LINEAR two, CUBIC four, each weighted by its distance in float32.
    Positions outside repeat the edge, or have no weight if `exclude_outside` is set.
    """
    for axis, length in enumerate(_lengths(layer, x, shape)):
        if length == x.shape[axis]:
            continue
        at = _input_positions(layer, x.shape[axis], length)
        if layer.resize_mode.name == "NEAREST":
            rounded = ROUNDINGS[layer.nearest_rounding.name](at)
            x = x.index_select(axis, rounded.clamp(0, x.shape[axis] - 1).long())
        else:
            x = _weighted(x, axis, *_taps(layer, at, x.shape[axis]))
    return x


def _lengths(layer: ILayer, x: Tensor, shape: Tensor | None) -> list[int]:
    if shape is not None:
        return [int(length) for length in shape]
    lengths = _shape(layer)  # read first, because TensorRT warns about unset scales
    if lengths is not None and len(lengths) == x.dim():
        return lengths
    return [
        math.floor(length * scale)
        for length, scale in zip(x.shape, layer.scales, strict=True)
    ]


def _shape(layer: ILayer) -> list[int] | None:
    """The layer's shape; None if scales are set instead.

    In that case some versions return Dims with a negative rank, which raises ValueError.
    """
    try:
        if layer.shape is None:
            return None
        return list(layer.shape)
    except ValueError:
        return None


def _input_positions(layer: ILayer, origin: int, resized: int) -> Tensor:
    """The position of each output element in the input, as float32. With UPPER, a single element is
    at position 0.
    """
    if resized == 1 and layer.selector_for_single_pixel.name == "UPPER":
        return torch.zeros(1)
    x = torch.arange(resized, dtype=torch.float32)
    return COORDINATES[layer.coordinate_transformation.name](x, origin, resized)


def _taps(layer: ILayer, at: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """(indices, weights), each of shape (taps, positions)."""
    cubic = layer.resize_mode.name == "CUBIC"
    offsets = torch.arange(-1, 3) if cubic else torch.arange(2)
    index = torch.floor(at).long() + offsets[:, None]
    distance = (at - index).abs()
    weights = _cubic(distance, layer.cubic_coeff) if cubic else 1 - distance
    if layer.exclude_outside:
        weights = torch.where((index < 0) | (index >= length), torch.zeros(()), weights)
        weights = weights / weights.sum(0)
    return index.clamp(0, length - 1), weights


def _cubic(x: Tensor, a: float) -> Tensor:
    """The weights of IResizeLayer::setCubicCoeff for samples at distance x."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x <= 1, near, torch.where(x < 2, far, torch.zeros(())))


def _weighted(x: Tensor, axis: int, index: Tensor, weights: Tensor) -> Tensor:
    parts = [
        x.index_select(axis, i) * along_axis(weight, axis, x.dim())
        for i, weight in zip(index, weights, strict=True)
    ]
    return torch.stack(parts).sum(0)


GRID_MODES = {"NEAREST": "nearest", "LINEAR": "bilinear", "CUBIC": "bicubic"}
GRID_OUTSIDE = {"FILL": "zeros", "CLAMP": "border", "REFLECT": "reflection"}


@evaluates("GRID_SAMPLE")
@in_float32
def grid_sample(layer: ILayer, x: Tensor, grid: Tensor) -> Tensor:
    """x (N, C, H, W) sampled at the positions in grid (N, Ho, Wo, 2: x, y from -1 to 1), as in
    ONNX. With FILL, values outside are 0.
    """
    mode = GRID_MODES[layer.interpolation_mode.name]
    outside = GRID_OUTSIDE[layer.sample_mode.name]
    return functional.grid_sample(
        x, grid, mode, outside, align_corners=layer.align_corners
    )
