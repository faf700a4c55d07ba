"""Tensors as arrays and back, bfloat16 too."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """The tensor's values as an array of the same element type (bfloat16: ml_dtypes.bfloat16), a copy."""
    value = tensor.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:
        return np.array(value.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.array(value.numpy())


def to_torch(array: NDArray[Any]) -> torch.Tensor:
    """The array's values as a CPU tensor of the same element type."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))
