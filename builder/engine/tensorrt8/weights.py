"""Weights over an array: this version takes no address."""

from __future__ import annotations

from typing import Any

import torch

from builder.engine.flavour import trt
from builder.engine.interfaces import DataType


def over(tensor: torch.Tensor, dtype: DataType) -> tuple[Any, Any]:
    """(trt.Weights, what must stay alive as long) over a contiguous tensor's own memory."""
    if not tensor.numel():
        return trt.Weights(dtype), None  # it must have no address, and numpy's empty array has one
    array = tensor.numpy()
    return trt.Weights(array), array
