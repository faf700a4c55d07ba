"""IQuantizeLayer and IDequantizeLayer: clamp(round(x / scale) + zero point), and the inverse."""

from __future__ import annotations

from torch import Tensor

from builder.engine import ILayer, tensorrt8
from builder.reference.dtypes import along_axis, output_dtype
from builder.reference.registry import evaluates

RANGES = {"INT8": (-128, 127), "INT4": (-8, 7), "FP8": (-448, 448)}


@evaluates("QUANTIZE")
def quantize(
    layer: ILayer, x: Tensor, scale: Tensor, zero: Tensor | None = None
) -> Tensor:
    """x / scale, computed in float32, rounded to the nearest value of the output's dtype (ties to
    even), and saturated.
    """
    dtype = tensorrt8.evaluation.output_dtype("QUANTIZE")
    kind = "INT8" if dtype else layer.get_output(0).dtype.name
    low, high = RANGES[kind]
    steps = x.float() / _spread(scale, x, layer.axis)
    if kind != "FP8":
        steps = steps.round()
    if zero is not None:
        steps = steps + _spread(zero, x, layer.axis)
    return steps.clamp(low, high).to(dtype or output_dtype(layer))


@evaluates("DEQUANTIZE")
def dequantize(
    layer: ILayer, x: Tensor, scale: Tensor, zero: Tensor | None = None
) -> Tensor:
    """(x - zero) * scale, computed in float32, in the output's dtype."""
    wide = x.float()
    if zero is not None:
        wide = wide - _spread(zero, x, layer.axis)
    return (wide * _spread(scale, x, layer.axis)).to(output_dtype(layer))


def _spread(coefficients: Tensor, x: Tensor, axis: int) -> Tensor:
    """The coefficient of each element of x, in float32. There is one coefficient in total, one for
    each index of `axis`, or one for each block.
    """
    wide = coefficients.float()
    if wide.numel() == 1:
        return wide.reshape(())
    if (wide.dim() == 1 and x.dim() > 1) or wide.dim() < x.dim():
        return along_axis(wide, axis % x.dim(), x.dim())
    for i, (blocks, length) in enumerate(zip(wide.shape, x.shape, strict=True)):
        if blocks != length:
            wide = wide.repeat_interleave(length // blocks, dim=i)
    return wide
