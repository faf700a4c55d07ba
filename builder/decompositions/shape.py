"""Shapes: views as reshapes, tiles as repeats, sums to a shape, writes to a part."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.decompositions.registry import decomposition


@decomposition("aten::view", "aten::_unsafe_view")
def view(self: Tensor, size: list[int]) -> Tensor:
    """reshape: the same values in row-major order"""
    return torch.reshape(self, size)


@decomposition("aten::view_as", "aten::reshape_as")
def view_as(self: Tensor, other: Tensor) -> Tensor:
    """self.reshape(other.size())"""
    return torch.reshape(self, other.size())


@decomposition("aten::tile")
def tile(self: Tensor, dims: list[int]) -> Tensor:
    """repeat, with ones in front where there are fewer numbers than axes"""
    return self.repeat([1] * max(self.dim() - len(dims), 0) + dims)


@decomposition("aten::sum_to_size")
def sum_to_size(self: Tensor, size: list[int]) -> Tensor:
    """the sum over the axes that `size` lacks, or that have size 1 there"""
    x = self
    more = self.dim() - len(size)
    if len(size) == 0:
        return torch.sum(self)
    for i in range(more):
        x = torch.sum(x, [0])
    for i in range(len(size)):
        if size[i] == 1:
            x = torch.sum(x, [i], True)
    return x


@decomposition("aten::select_scatter")
def select_scatter(self: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    """self with self.select(dim, index) replaced by src"""
    # Selected, not concatenated: the lengths of the parts would change within a loop, and TensorRT
    # supports only static ones there.
    size = self.size(dim)
    positions = torch.arange(size, device="cpu")
    here = torch.logical_or(positions == index, positions == index + size)
    new = src.unsqueeze(dim).transpose(dim, -1)
    return torch.where(here, new, self.transpose(dim, -1)).transpose(dim, -1)


@decomposition("aten::_shape_as_tensor")
def shape_as_tensor(self: Tensor) -> Tensor:
    """the sizes as a tensor"""
    return torch.tensor(self.size(), dtype=torch.int64, device="cpu")
