"""Element types by their three names: torch's (ours), Triton's in a config, Triton's on the
wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from builder.errors import PublishError


@dataclass(frozen=True)
class Dtype:
    """`tensorrt`: TensorRT's name where an engine's input or output can have the type, else None
    (tensorrt_backend's ConvertTrtTypeToDataType).
    """

    name: str
    config: str
    wire: str
    numpy: np.dtype[Any]
    tensorrt: str | None


TABLE = (
    Dtype("bool", "TYPE_BOOL", "BOOL", np.dtype(np.bool_), "BOOL"),
    Dtype("uint8", "TYPE_UINT8", "UINT8", np.dtype(np.uint8), "UINT8"),
    Dtype("int8", "TYPE_INT8", "INT8", np.dtype(np.int8), "INT8"),
    Dtype("int16", "TYPE_INT16", "INT16", np.dtype(np.int16), None),
    Dtype("int32", "TYPE_INT32", "INT32", np.dtype(np.int32), "INT32"),
    Dtype("int64", "TYPE_INT64", "INT64", np.dtype(np.int64), "INT64"),
    Dtype("float16", "TYPE_FP16", "FP16", np.dtype(np.float16), "HALF"),
    Dtype("bfloat16", "TYPE_BF16", "BF16", np.dtype(ml_dtypes.bfloat16), "BF16"),
    Dtype("float32", "TYPE_FP32", "FP32", np.dtype(np.float32), "FLOAT"),
    Dtype("float64", "TYPE_FP64", "FP64", np.dtype(np.float64), None),
)
_BY_NAME = {entry.name: entry for entry in TABLE}
_BY_CONFIG = {entry.config: entry for entry in TABLE}
_BY_TENSORRT = {entry.tensorrt: entry for entry in TABLE if entry.tensorrt}
_BY_NUMPY = {entry.numpy: entry for entry in TABLE}
_BY_WIRE = {entry.wire: entry for entry in TABLE}


def by_name(name: str) -> Dtype:
    """The entry of torch's name for it, e.g. "float32"; PublishError for one that Triton does not
    have.
    """
    if name not in _BY_NAME:
        raise PublishError(
            f"Triton has no element type for {name!r}", fix=f"one of {', '.join(_BY_NAME)}"
        )
    return _BY_NAME[name]


def by_config(name: str) -> Dtype:
    """The entry of a config's name for it, e.g. "TYPE_FP32"."""
    return _BY_CONFIG[name]


def by_wire(name: str) -> Dtype:
    """The entry of a request's or response's name for it, e.g. "FP32"."""
    return _BY_WIRE[name]


def by_numpy(dtype: np.dtype[Any]) -> Dtype | None:
    """The entry of an array's dtype, None for one that no model of ours has."""
    return _BY_NUMPY.get(np.dtype(dtype))


def by_tensorrt(name: str) -> Dtype:
    """The entry of TensorRT's name for it, e.g. "HALF"; PublishError for one that Triton cannot
    serve, e.g. "FP8".
    """
    if name not in _BY_TENSORRT:
        raise PublishError(
            f"Triton serves no tensor of TensorRT's type {name}", fix="cast it in the model"
        )
    return _BY_TENSORRT[name]
