"""Writes to a part of a tensor."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.decompositions.registry import decomposition


@decomposition(
    "aten::select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor"
)
def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """self with self.select(dim, index) replaced by src"""
    # Selected, not concatenated: the lengths of the parts would change within a loop, and TensorRT
    # supports only static ones there.
    size = self.size(dim)
    positions = torch.arange(size, device="cpu")
    here = torch.logical_or(positions == index, positions == index + size)
    new = src.unsqueeze(dim).transpose(dim, -1)
    return torch.where(here, new, self.transpose(dim, -1)).transpose(dim, -1)
