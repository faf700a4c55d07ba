"""The quantizing nodes themselves: scales of weights and activations, and the node that each dtype
has.
"""

from __future__ import annotations

from typing import Any

import torch

from builder.graph_types import Graph, Node, Value
from builder.lowering import FP8_KIND, FP8_LIMIT, ir

MOST = {torch.int8: 127.0, torch.float8_e4m3fn: FP8_LIMIT}
"""The value on the grid that the greatest magnitude becomes."""

INT8_LOW, INT8_HIGH = -128, 127


def scale_of(greatest: float, dtype: torch.dtype) -> torch.Tensor:
    """float32, rank 0; 1 for a tensor of zeros, which lies on any grid."""
    return torch.tensor(greatest / MOST[dtype] or 1.0)


def weight_scale(weight: torch.Tensor, axis: int | None, dtype: torch.dtype) -> torch.Tensor:
    """From the greatest magnitude of all (rank 0), or in each place of `axis` (rank 1)."""
    sizes = weight.detach().float().abs()
    if axis is None:
        return scale_of(float(sizes.max()) if sizes.numel() else 0.0, dtype)
    most = sizes.amax([i for i in range(weight.dim()) if i != axis])
    return torch.where(most > 0, most / MOST[dtype], 1.0)


def insert(
    graph: Graph,
    value: Value,
    scale: torch.Tensor,
    axis: int | None,
    dtype: torch.dtype,
    before: Node,
) -> Any:
    """The value rounded to the grid of `scale`, by a new node before the node `before`."""
    kind, rest = _int8(scale, axis) if dtype == torch.int8 else (FP8_KIND, [scale, axis])
    arguments = [value, *(ir.insert_constant(graph, argument, before) for argument in rest)]
    return ir.insert(graph, kind, arguments, before).output()


def _int8(scale: torch.Tensor, axis: int | None) -> tuple[str, list[Any]]:
    if axis is None:
        return "aten::fake_quantize_per_tensor_affine", [float(scale), 0, INT8_LOW, INT8_HIGH]
    zeros = torch.zeros_like(scale, dtype=torch.int32)
    return "aten::fake_quantize_per_channel_affine", [scale, zeros, axis, INT8_LOW, INT8_HIGH]
