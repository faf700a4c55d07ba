"""Normalization with its statistics."""

from __future__ import annotations

import torch
from torch import Tensor

from builder.decompositions.registry import decomposition


@decomposition("aten::native_group_norm")
def native_group_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    N: int,
    C: int,
    HxW: int,
    group: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """group_norm, each group's mean and the reciprocal of its deviation"""
    groups = input.reshape([input.size(0), group, -1])
    mean = torch.mean(groups, [2])
    apart = groups - mean.unsqueeze(2)
    variance = torch.mean(apart * apart, [2])
    normalized = torch.group_norm(input, group, weight, bias, eps)
    return normalized, mean, torch.rsqrt(variance + eps)
