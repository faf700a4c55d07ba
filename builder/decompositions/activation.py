"""Activations and their logarithms."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from builder.decompositions.registry import decomposition


@decomposition("aten::silu")
def silu(self: Tensor) -> Tensor:
    """x sigmoid(x)"""
    return self * torch.sigmoid(self)


@decomposition("aten::log_softmax.int", "aten::special_log_softmax")
def log_softmax(self: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    """x - m - log(sum(exp(x - m))), m the maximum: finite where softmax underflows to 0"""
    x = self
    if dtype is not None:
        x = self.to(dtype)
    shifted = x - torch.amax(x, [dim], True)
    return shifted - torch.log(torch.sum(torch.exp(shifted), [dim], True))


@decomposition("aten::_log_softmax")
def log_softmax_of_half(self: Tensor, dim: int, half_to_float: bool) -> Tensor:
    """log_softmax, of half as float32 with half_to_float"""
    x = self
    if half_to_float:
        x = self.to(torch.float)
    shifted = x - torch.amax(x, [dim], True)
    return shifted - torch.log(torch.sum(torch.exp(shifted), [dim], True))


@decomposition("aten::_safe_softmax")
def safe_softmax(self: Tensor, dim: int, dtype: torch.dtype | None) -> Tensor:
    """softmax; 0 along an axis that is all -inf"""
    hidden = torch.amax(self, [dim], True) == -math.inf
    return torch.masked_fill(torch.softmax(self, dim, dtype), hidden, 0.0)
