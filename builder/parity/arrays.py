"""Conversion between tensors and arrays, including bfloat16."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from builder.errors import UsageError


def to_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    """The tensor's values as an array of the same element type (bfloat16: ml_dtypes.bfloat16), a
    copy.
    """
    value = tensor.detach().cpu().contiguous()
    if value.dtype == torch.bfloat16:
        return np.array(value.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.array(value.numpy())


def to_torch(array: NDArray[Any]) -> torch.Tensor:
    """The array, of any byte order, as a CPU tensor of the same dtype. Raises TypeError for a dtype
    that torch does not have.
    """
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("=")))


def narrow(tensor: torch.Tensor, name: str = "") -> torch.Tensor:
    """A float32 tensor as float16; other tensors are not changed. Raises UsageError, for the output
    `name`, if a value exceeds float16's range.
    """
    if tensor.dtype != torch.float32:
        return tensor
    half = tensor.to(torch.float16)
    if bool((half.isinf() & tensor.isfinite()).any()):
        most = tensor[tensor.isfinite()].abs().max().item()
        raise UsageError(
            f"io: fp16: {name or 'an input'} reaches {most:.4g}, beyond float16's 65504",
            fix="use io: module",
        )
    return half
