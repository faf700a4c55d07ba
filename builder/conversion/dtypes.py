"""torch's and TensorRT's dtypes: the mapping, carrier dtypes, and PyTorch's type promotion.

TensorRT computes in float32, float16, bfloat16, int32, int64 and bool. It supports uint8 and int8
only for network inputs and quantization, and some versions have no int64. Such a tensor is computed
in another dtype, its carrier, and ConversionContext records its torch dtype.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch

from builder.conversion.unconvertible import Unconvertible
from builder.dtypes import TABLE, name_of, torch_dtype
from builder.engine import DataType, capabilities, trt

NAMES = {torch_dtype(entry): entry.tensorrt for entry in TABLE if entry.tensorrt}

TORCH_SCALARS: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float32,
}


@lru_cache
def carrier(dtype: torch.dtype) -> torch.dtype:
    """The dtype that a tensor of torch's `dtype` is computed in: int32 for the small integers, and
    for int64 where TensorRT has none.
    """
    if dtype in (torch.uint8, torch.int8, torch.int16):
        return torch.int32
    if dtype == torch.int64 and not capabilities.current().has_int64:
        return torch.int32
    if dtype == torch.float64:
        return torch.float32
    return dtype


def reduction_identity(dtype: torch.dtype, operation: str) -> float | int:
    """The neutral element of a MAX or a MIN: an infinity, or the smallest or largest integer of the
    carrier.
    """
    if dtype.is_floating_point:
        return -math.inf if operation == "MAX" else math.inf
    limits = min(
        torch.iinfo(dtype), torch.iinfo(carrier(dtype)), key=lambda kind: kind.bits
    )
    return limits.min if operation == "MAX" else limits.max


@lru_cache
def endpoint(dtype: torch.dtype, side: str) -> torch.dtype:
    """The dtype of a network's INPUT or OUTPUT of torch's `dtype`: the small integers unchanged if
    TensorRT supports them, else int32.
    """
    if dtype in (torch.uint8, torch.int8) and capabilities.current().takes(
        side, NAMES[dtype]
    ):
        return dtype
    return carrier(dtype)


@lru_cache
def to_trt(dtype: torch.dtype) -> Any:
    """TensorRT's DataType of exactly that torch dtype. Raises Unconvertible if the flavor does not
    have it.
    """
    name = NAMES.get(dtype, "")
    if not hasattr(trt.DataType, name):
        raise Unconvertible(f"TensorRT {trt.__version__} has no {name_of(dtype)}")
    return getattr(trt.DataType, name)


@lru_cache
def _from_trt() -> dict[Any, torch.dtype]:
    return {
        getattr(trt.DataType, name): dtype
        for dtype, name in NAMES.items()
        if hasattr(trt.DataType, name)
    }


def from_trt(dtype: DataType) -> torch.dtype:
    """torch's dtype of a TensorRT DataType."""
    return _from_trt()[dtype]


def index_dtype() -> torch.dtype:
    """The dtype of shape tensors: int64, or int32 if TensorRT has no int64."""
    return carrier(torch.int64)


Operand = tuple[torch.dtype, str]
"""A dtype and its category in type promotion: "dimensioned", "zero-dim" or "number"."""

_CATEGORIES = ("dimensioned", "zero-dim", "number")


@lru_cache(maxsize=4096)
def promote(*operands: Operand) -> torch.dtype:
    """PyTorch's result dtype of an operation on these operands.

    Source: PyTorch documentation, "Tensor Attributes", type promotion: a category matters only
    where its kind (bool, integer, floating) is above that of every category of higher priority;
    dimensioned, then zero-dim, then numbers. torch.float64 results come only from Python numbers
    and are carried as float32.
    """
    result: torch.dtype | None = None
    for category in _CATEGORIES:
        dtypes = [dtype for dtype, kind in operands if kind == category]
        if not dtypes:
            continue
        common = dtypes[0]
        for dtype in dtypes[1:]:
            common = torch.promote_types(common, dtype)
        if result is None or _kind(common) > _kind(result):
            result = common
            if category == "number":
                result = (
                    torch.get_default_dtype() if common.is_floating_point else common
                )
    assert result is not None
    if result == torch.float64:
        return torch.float32
    return result


def _kind(dtype: torch.dtype) -> int:
    if dtype == torch.bool:
        return 0
    return 2 if dtype.is_floating_point else 1
