"""IConvolutionLayer (correlation) over two or three spatial axes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from builder.reference.dtypes import in_float32, weights_tensor
from builder.reference.layers.padding import torch_pads, window_padding
from builder.reference.registry import evaluates

CONVOLUTIONS = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


@evaluates("CONVOLUTION")
@in_float32
def convolution(layer: Any, x: Tensor, kernel: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """x of N, C and spatial axes; the kernel (K, C / groups, ...) and the bias (K) are weights, or inputs 1 and 2."""
    window = list(layer.kernel_size_nd)
    if kernel is None:
        kernel = weights_tensor(layer.kernel, (layer.num_output_maps, x.shape[1] // layer.num_groups, *window))
    bias = weights_tensor(layer.bias) if bias is None else bias
    stride, dilation = list(layer.stride_nd), list(layer.dilation_nd)
    dilated = [d * (n - 1) + 1 for d, n in zip(dilation, window, strict=True)]
    pads, beyond = window_padding(layer, list(x.shape[2:]), dilated, stride)
    pads = [(a, b + extra) for (a, b), (_, extra) in zip(pads, beyond, strict=True)]
    even = all(a == b for a, b in pads)
    x = x if even else functional.pad(x, torch_pads(pads))
    kernel, bias = (t if t is None else t.to(x.dtype) for t in (kernel, bias))
    padding = [a for a, _ in pads] if even else 0
    return CONVOLUTIONS[len(window)](x, kernel, bias, stride, padding, dilation, layer.num_groups)
