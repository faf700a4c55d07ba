"""Inverse pooling."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.decompositions.registry import decomposition


def unpooled(self: Tensor, indices: Tensor, output_size: list[int]) -> Tensor:
    spatial = len(output_size)
    batch = list(self.size()[:-spatial])
    volume = 1
    for n in output_size:
        volume = volume * n
    flat = torch.zeros([], dtype=self.dtype).expand(batch + [volume])
    positions = torch.flatten(indices, -spatial)
    flat = torch.scatter(flat, -1, positions, torch.flatten(self, -spatial))
    return flat.reshape(batch + output_size)


@decomposition("aten::max_unpool2d")
def max_unpool2d(self: Tensor, indices: Tensor, output_size: list[int]) -> Tensor:
    """values put back where pooling found them, zeros elsewhere"""
    return unpooled(self, indices, output_size)


@decomposition("aten::max_unpool3d")
def max_unpool3d(
    self: Tensor,
    indices: Tensor,
    output_size: list[int],
    stride: list[int],
    padding: list[int],
) -> Tensor:
    """values put back where pooling found them, zeros elsewhere"""
    return unpooled(self, indices, output_size)
