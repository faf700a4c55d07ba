"""trt.Weights from a tensor's memory."""

from __future__ import annotations

from typing import Any

import torch

from builder.engine import capabilities
from builder.engine.flavor import trt
from builder.engine.interfaces import DataType
from builder.engine.tensorrt8 import network as tensorrt8


def over(tensor: torch.Tensor, dtype: DataType) -> tuple[Any, Any]:
    """(trt.Weights, an object that must stay alive as long) from a contiguous CPU tensor. `dtype`
    is its trt.DataType.
    """
    if not capabilities.current().strongly_typed:
        return tensorrt8.weights(tensor, dtype)
    return trt.Weights(dtype, tensor.data_ptr(), tensor.numel()), tensor
