"""Weights from an array, because this version takes no address."""

from __future__ import annotations

from typing import Any

import torch

from builder.engine.flavor import trt
from builder.engine.interfaces import DataType


def over(tensor: torch.Tensor, dtype: DataType) -> tuple[Any, Any]:
    """(trt.Weights, an object that must stay alive as long) from a contiguous tensor's memory."""
    if not tensor.numel():
        # it must not have an address, but numpy's empty array has one
        return trt.Weights(dtype), None
    array = tensor.numpy()
    return trt.Weights(array), array
