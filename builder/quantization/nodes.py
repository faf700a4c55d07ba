"""Scales of weights and activations, and the quantizing node for each dtype."""

from __future__ import annotations

from typing import Any

import torch

from builder.graph_types import Graph, Node, Value
from builder.lowering import FP8_KIND, FP8_LIMIT, ir

MOST = {torch.int8: 127.0, torch.float8_e4m3fn: FP8_LIMIT}
"""The quantized value to which the largest magnitude is mapped."""

INT8_LOW = -128
INT8_HIGH = 127


LEAST = torch.finfo(torch.float32).tiny
"""The smallest scale. A smaller one has few bits or is zero, and zero divides to NaN."""


def scale_of(greatest: float, dtype: torch.dtype) -> torch.Tensor:
    """The scale for a largest magnitude, as float32 of rank 0. For a tensor of zeros it is 1."""
    return torch.tensor(max(greatest / MOST[dtype], LEAST) if greatest else 1.0)


def weight_scale(
    weight: torch.Tensor, axis: int | None, dtype: torch.dtype
) -> torch.Tensor:
    """The scale of a weight: one scale (rank 0), or one for each index of `axis` (rank 1)."""
    sizes = weight.detach().float().abs()
    if axis is None:
        return scale_of(float(sizes.max()) if sizes.numel() else 0.0, dtype)
    most = sizes.amax([i for i in range(weight.dim()) if i != axis])
    return torch.where(most > 0, (most / MOST[dtype]).clamp(min=LEAST), 1.0)


def insert(
    graph: Graph,
    value: Value,
    scale: torch.Tensor,
    axis: int | None,
    dtype: torch.dtype,
    before: Node,
) -> Any:
    """Insert a node before the node `before` that rounds the value to multiples of `scale`. Returns
    the rounded value.
    """
    if dtype == torch.int8:
        kind, parameters = _int8(scale, axis)
    else:
        kind, parameters = FP8_KIND, [scale, axis]
    arguments = [
        value,
        *(ir.insert_constant(graph, argument, before) for argument in parameters),
    ]
    return ir.insert(graph, kind, arguments, before).output()


def _int8(scale: torch.Tensor, axis: int | None) -> tuple[str, list[Any]]:
    if axis is None:
        return "aten::fake_quantize_per_tensor_affine", [
            float(scale),
            0,
            INT8_LOW,
            INT8_HIGH,
        ]
    zeros = torch.zeros_like(scale, dtype=torch.int32)
    return "aten::fake_quantize_per_channel_affine", [
        scale,
        zeros,
        axis,
        INT8_LOW,
        INT8_HIGH,
    ]
