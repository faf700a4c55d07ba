"""Propagate the symbolic sizes of dynamic axes through layers, by layer type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.conversion.dynamic import bounds
from builder.engine import ILayer, ITensor, trt

if TYPE_CHECKING:
    from builder.conversion.context import ConversionContext


SAME_SHAPE = frozenset(
    """
        ACTIVATION UNARY CAST IDENTITY SCALE SOFTMAX NORMALIZATION LRN CUMULATIVE QUANTIZE
        DEQUANTIZE
    """.split()
)
BROADCAST = frozenset("ELEMENTWISE SELECT PARAMETRIC_RELU".split())
LEADING_AXIS = frozenset("CONVOLUTION DECONVOLUTION POOLING RESIZE".split())


def kind_of(layer: ILayer) -> str:
    """The layer's type. The `type` attribute of IActivationLayer and IPoolingLayer hides it."""
    return str(trt.ILayer.type.__get__(layer).name)


def inputs_of(layer: Any) -> list[ITensor]:
    """The input tensors of a layer, without the optional ones that are not set."""
    inputs = map(layer.get_input, range(layer.num_inputs))
    return [tensor for tensor in inputs if tensor is not None]


def propagate_sizes(ctx: ConversionContext, layer: Any) -> None:
    """Record which dynamic axes of the layer's outputs equal axes of its inputs. Recorded axes are
    kept.
    """
    for index in range(layer.num_outputs):
        output = layer.get_output(index)
        if output is not None and any(length < 0 for length in output.shape):
            _output(ctx, layer, output)


def _output(ctx: ConversionContext, layer: Any, output: ITensor) -> None:
    kind = kind_of(layer)
    exprs = ctx.facts(output).exprs
    if kind in SAME_SHAPE:
        axes = range(len(output.shape))
    elif kind in LEADING_AXIS:
        axes = range(1)
    elif kind in BROADCAST:
        for axis, length in enumerate(output.shape):
            if length < 0 and axis not in exprs:
                _broadcast(ctx, layer, output, axis)
        return
    elif kind in ("MATRIX_MULTIPLY", "REDUCE"):
        _same_rank_axes(ctx, layer, output)
        return
    else:
        return
    source = layer.get_input(0)
    for axis in axes:
        if output.shape[axis] < 0 and axis not in exprs:
            exprs[axis] = ctx.expr(source, axis)


def _broadcast(ctx: ConversionContext, layer: Any, output: ITensor, axis: int) -> None:
    """The size that all inputs share, or one that is certainly above 1, which the others then
    equal.
    """
    longer = [tensor for tensor in inputs_of(layer) if tensor.shape[axis] != 1]
    sizes = list(dict.fromkeys(ctx.expr(tensor, axis) for tensor in longer))
    if len(sizes) > 1:
        sizes = [size for size in sizes if _more_than_one(ctx, size)][:1]
    if sizes:
        ctx.facts(output).exprs[axis] = sizes[0]


def _more_than_one(ctx: ConversionContext, size: Any) -> bool:
    span = bounds(size, ctx.ranges())
    return span is not None and span[0] > 1


def _same_rank_axes(ctx: ConversionContext, layer: Any, output: ITensor) -> None:
    """Matrix products keep the batch axes; reductions with keepdim keep all axes that they do not
    reduce.
    """
    exprs = ctx.facts(output).exprs
    kind = kind_of(layer)
    source = layer.get_input(0)
    if kind == "REDUCE" and len(source.shape) == len(output.shape):
        for axis, length in enumerate(output.shape):
            if length < 0:
                exprs.setdefault(axis, ctx.expr(source, axis))
    elif kind == "MATRIX_MULTIPLY":
        for axis in range(len(output.shape) - 2):
            if output.shape[axis] < 0 and axis not in exprs:
                _broadcast(ctx, layer, output, axis)
