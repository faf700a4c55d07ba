"""Weights that are passed to TensorRT without a copy, and kept alive until the build ends."""

from __future__ import annotations

from typing import Any

import torch

from builder.conversion import dtypes
from builder.engine import trt, weights


class Weights:
    """TensorRT reads a network's weights during the build, so every passed tensor is kept here
    until then.
    """

    def __init__(self) -> None:
        self.alive: list[Any] = []

    def of(self, tensor: torch.Tensor | None) -> Any:
        """trt.Weights that share the tensor's memory (made contiguous first); empty Weights for
        None.
        """
        if tensor is None:
            return trt.Weights()
        tensor = tensor.detach().contiguous()
        result, owner = weights.over(tensor, dtypes.to_trt(tensor.dtype))
        self.alive.append(owner)
        return result
