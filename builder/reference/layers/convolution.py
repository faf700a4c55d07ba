"""IConvolutionLayer (correlation) and IDeconvolutionLayer over two or three spatial axes."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from builder.engine import ILayer
from builder.reference.dtypes import in_float32, weights_tensor
from builder.reference.layers.padding import (
    dilated,
    torch_pads,
    trimming,
    window_padding,
)
from builder.reference.registry import evaluates

CONVOLUTIONS = {axes: getattr(functional, f"conv{axes}d") for axes in (1, 2, 3)}
TRANSPOSED = {axes: getattr(functional, f"conv_transpose{axes}d") for axes in (1, 2, 3)}


def _window(layer: ILayer) -> tuple[list[int], list[int], list[int]]:
    """The sizes, strides and dilations of the kernel, by spatial axis."""
    return list(layer.kernel_size_nd), list(layer.stride_nd), list(layer.dilation_nd)


@evaluates("CONVOLUTION")
@in_float32
def convolution(
    layer: ILayer, x: Tensor, kernel: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Convolve x, which has axes N, C and spatial axes.

    The kernel (K, C / groups, ...) and the bias (K) are weights, or inputs 1 and 2.
    """
    window, stride, dilation = _window(layer)
    kernel, bias = _weights(
        layer,
        x,
        kernel,
        bias,
        (layer.num_output_maps, x.shape[1] // layer.num_groups, *window),
    )
    pads, excess = window_padding(
        layer, list(x.shape[2:]), dilated(window, dilation), stride
    )
    pads = [
        (before, after + extra)
        for (before, after), (_, extra) in zip(pads, excess, strict=True)
    ]
    even = all(before == after for before, after in pads)
    if not even:
        x = functional.pad(x, torch_pads(pads))
    padding = [before for before, _ in pads] if even else 0
    result: Tensor = CONVOLUTIONS[len(window)](
        x, kernel, bias, stride, padding, dilation, layer.num_groups
    )
    return result


@evaluates("DECONVOLUTION")
@in_float32
def deconvolution(
    layer: ILayer, x: Tensor, kernel: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """The transpose of a convolution: each element of x adds its kernel (C, K / groups, ...).
    Padding trims the result.
    """
    window, stride, dilation = _window(layer)
    kernel, bias = _weights(
        layer,
        x,
        kernel,
        bias,
        (x.shape[1], layer.num_output_maps // layer.num_groups, *window),
    )
    full: Tensor = TRANSPOSED[len(window)](
        x, kernel, None, stride, 0, 0, layer.num_groups, dilation
    )
    for axis, (before, after) in enumerate(
        trimming(layer, dilated(window, dilation), stride), start=2
    ):
        full = full.narrow(axis, before, full.shape[axis] - before - after)
    if bias is None:
        return full
    return full + bias.reshape(-1, *[1] * len(window))


def _weights(
    layer: ILayer,
    x: Tensor,
    kernel: Tensor | None,
    bias: Tensor | None,
    shape: tuple[int, ...],
) -> tuple[Tensor | None, Tensor | None]:
    """Kernel and bias in x's dtype: the inputs if set, else the layer's weights."""
    if kernel is None:
        kernel = weights_tensor(layer.kernel, shape)
    if bias is None:
        bias = weights_tensor(layer.bias)
    if kernel is not None:
        kernel = kernel.to(x.dtype)
    if bias is not None:
        bias = bias.to(x.dtype)
    return kernel, bias
