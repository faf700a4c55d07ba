"""TensorRT's dtypes as torch dtypes, weights as tensors, and vectors along one axis."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor

from builder import dtypes
from builder.engine import ILayer
from builder.reference.registry import Evaluator

TORCH_DTYPES = {
    e.tensorrt: dtypes.torch_dtype(e) for e in dtypes.TABLE if e.tensorrt
} | {
    "E8M0": torch.float8_e8m0fnu,  # a scale of 8 exponent bits
    "INT4": torch.int8,  # torch has no 4-bit arithmetic: int8 has the values -8..7
}
REDUCED = (torch.float16, torch.bfloat16)


def torch_dtype(dtype: Any) -> torch.dtype:
    """The torch dtype for values of TensorRT's `dtype`. Raises KeyError if torch has none (FP4)."""
    return TORCH_DTYPES[dtype.name]


def output_dtype(layer: ILayer, index: int = 0) -> torch.dtype:
    """The dtype that TensorRT reports for an output of `layer`."""
    return torch_dtype(layer.get_output(index).dtype)


class _RawWeights(ctypes.Structure):
    """nvinfer1::Weights: a DataType, a pointer to the values, and the number of values."""

    _fields_ = (
        ("type", ctypes.c_int32),
        ("values", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )


def weights_tensor(weights: object, shape: Sequence[int] = (-1,)) -> Tensor | None:
    """A layer's weights as a tensor of `shape` that shares their memory; None if the layer has
    none.
    """
    flat = (
        torch.from_numpy(weights)
        if isinstance(weights, np.ndarray)
        else _without_numpy(weights)
    )
    if flat.numel() == 0 and 0 not in shape:
        return None
    return flat.reshape(tuple(shape))


def _without_numpy(weights: Any) -> Tensor:
    """A tensor of weights with a dtype that numpy lacks (bfloat16, float8). TensorRT returns its
    own object for them, without a public address.

    The object is a pybind11 instance, whose first field after the Python header points to the C++
    value. That value must agree with the object's own `dtype` and `size`.
    """
    address = ctypes.c_void_p.from_address(id(weights) + object.__basicsize__).value
    raw = _RawWeights.from_address(address or 0)
    if raw.type != int(weights.dtype) or raw.count != weights.size:
        raise ValueError(f"cannot read {weights.size} weights of {weights.dtype}")
    if not raw.count:
        return torch.empty(0)
    if weights.dtype.name == "INT4":  # its `nbytes` is unreliable
        return _unpacked(_at(raw.values, (raw.count + 1) // 2, torch.int8), raw.count)
    return _at(raw.values, raw.count, torch_dtype(weights.dtype))


def _at(address: int, count: int, dtype: torch.dtype) -> Tensor:
    data = (ctypes.c_byte * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(data, dtype=dtype)


def _unpacked(packed: Tensor, count: int) -> Tensor:
    """Unpack 4-bit integers. The first of each byte is in its low half."""
    low = packed << 4 >> 4
    high = packed >> 4
    return torch.stack([low, high], dim=-1).reshape(-1)[:count]


def axes_of(mask: int) -> tuple[int, ...]:
    """The axes of a bit mask: bit i stands for axis i."""
    return tuple(axis for axis in range(mask.bit_length()) if mask >> axis & 1)


def in_float32(evaluator: Evaluator) -> Evaluator:
    """Let `evaluator` compute half and bfloat16 in float32, and round once at the end to the dtype
    of its data input.

    TensorRT accumulates reduced-precision reductions, products and norms in float32, and rounds the
    stored result.
    """

    @wraps(evaluator)
    def wide(layer: ILayer, x: Tensor, *others: Tensor | None) -> Any:
        if x.dtype not in REDUCED:
            return evaluator(layer, x, *others)
        widened = [
            tensor.float() if tensor is not None and tensor.dtype in REDUCED else tensor
            for tensor in (x, *others)
        ]
        return evaluator(layer, *widened).to(x.dtype)

    return wide


def along_axis(vector: Tensor, axis: int, rank: int) -> Tensor:
    """The vector with `rank` axes, all of size 1 except `axis`."""
    shape = [1] * rank
    shape[axis] = -1
    return vector.reshape(shape)
