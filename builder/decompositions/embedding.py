"""Bags of embeddings, composed of a matrix product."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from builder.decompositions.registry import decomposition

NOTE = "the first output; the positions that training needs are not computed"


def bag_ends(offsets: Tensor, length: int, include_last_offset: bool) -> Tensor:
    if include_last_offset:
        return torch.narrow(offsets, 0, 1, offsets.size(0) - 1)
    last = torch.full([1], length, dtype=offsets.dtype)
    return torch.cat([torch.narrow(offsets, 0, 1, offsets.size(0) - 1), last], 0)


def membership(offsets: Tensor, length: int, include_last_offset: bool) -> Tensor:
    # [bags, indices]: whether the index is in the bag
    count = offsets.size(0)
    if include_last_offset:
        count = count - 1
    positions = torch.arange(length).unsqueeze(0)
    starts = torch.narrow(offsets, 0, 0, count).unsqueeze(1)
    ends = bag_ends(offsets, length, include_last_offset).unsqueeze(1)
    return torch.logical_and(positions >= starts, positions < ends)


def largest(rows: Tensor, inside: Tensor, sizes: Tensor) -> Tensor:
    # the maximum of each bag's rows; zeros for an empty bag
    outside = torch.logical_not(inside).unsqueeze(2)
    each = rows.unsqueeze(0).expand([inside.size(0), -1, -1])
    bags = torch.amax(torch.masked_fill(each, outside, -math.inf), [1])
    return torch.where((sizes == 0).unsqueeze(1), torch.zeros_like(bags), bags)


@decomposition("aten::_embedding_bag", note=NOTE)
def raw_embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    include_last_offset: bool,
    padding_idx: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """the sum, mean or maximum of each bag's rows, by a matrix of which index is in which bag"""
    inside = membership(offsets, indices.size(0), include_last_offset)
    if padding_idx >= 0:
        inside = torch.logical_and(inside, (indices != padding_idx).unsqueeze(0))
    rows = torch.index_select(weight, 0, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    sizes = torch.sum(inside, [1])
    if mode == 2:
        bags = largest(rows, inside, sizes)
    else:
        bags = torch.matmul(inside.to(rows.dtype), rows)
        if mode == 1:
            bags = bags / torch.clamp_min(sizes, 1).unsqueeze(1).to(rows.dtype)
    bag_of_index = torch.argmax(inside.to(torch.int), 0)
    return bags, bag_of_index, sizes, torch.zeros([0], dtype=torch.long)


@decomposition("aten::embedding_bag", note=NOTE)
def embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    include_last_offset: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """the sum, mean or maximum of each bag's rows, by a matrix of which index is in which bag"""
    return raw_embedding_bag(
        weight,
        indices,
        offsets,
        scale_grad_by_freq,
        mode,
        sparse,
        per_sample_weights,
        include_last_offset,
        -1,
    )


@decomposition("aten::embedding_bag.padding_idx", note=NOTE)
def embedding_bag_with_padding(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Tensor | None,
    include_last_offset: bool,
    padding_idx: int | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """the sum, mean or maximum of each bag's rows, by a matrix of which index is in which bag"""
    padding = -1
    if padding_idx is not None:
        padding = padding_idx
        if padding_idx < 0:
            padding = padding_idx + weight.size(0)
    return raw_embedding_bag(
        weight,
        indices,
        offsets,
        scale_grad_by_freq,
        mode,
        sparse,
        per_sample_weights,
        include_last_offset,
        padding,
    )
