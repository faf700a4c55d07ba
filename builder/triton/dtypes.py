"""Dtypes with their three names: torch's (used in trt-build), that of Triton's config, and that of
Triton's requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes  # noqa: F401  (registers numpy's dtype of the name bfloat16)
import numpy as np

from builder import dtypes
from builder.errors import PublishError


@dataclass(frozen=True)
class Dtype:
    """A dtype. `tensorrt` is TensorRT's name if an engine's input or output can have the type, else
    None (tensorrt_backend's ConvertTrtTypeToDataType).
    """

    name: str
    config: str
    wire: str
    numpy: np.dtype[Any]
    tensorrt: str | None


TABLE = tuple(
    Dtype(
        entry.name,
        f"TYPE_{entry.triton}",
        entry.triton,
        np.dtype(entry.name),
        entry.tensorrt,
    )
    for entry in dtypes.TABLE
    if entry.triton
)
_BY_NAME = {entry.name: entry for entry in TABLE}
_BY_CONFIG = {entry.config: entry for entry in TABLE}
_BY_TENSORRT = {entry.tensorrt: entry for entry in TABLE if entry.tensorrt}
_BY_NUMPY = {entry.numpy: entry for entry in TABLE}
_BY_WIRE = {entry.wire: entry for entry in TABLE}


def by_name(name: str) -> Dtype:
    """The entry for torch's name, e.g. "float32". Raises PublishError for a dtype that Triton does
    not have.
    """
    if name not in _BY_NAME:
        raise PublishError(
            f"Triton has no element type for {name!r}",
            fix=f"use one of {', '.join(_BY_NAME)}",
        )
    return _BY_NAME[name]


def by_config(name: str) -> Dtype:
    """The entry for the name in a config, e.g. "TYPE_FP32"."""
    return _BY_CONFIG[name]


def by_wire(name: str) -> Dtype:
    """The entry for the name in a request or response, e.g. "FP32"."""
    return _BY_WIRE[name]


def by_numpy(dtype: np.dtype[Any]) -> Dtype | None:
    """The entry for an array's dtype; None for an unsupported dtype."""
    return _BY_NUMPY.get(np.dtype(dtype))


def by_tensorrt(name: str) -> Dtype:
    """The entry for TensorRT's name, e.g. "HALF". Raises PublishError for one that Triton cannot
    serve, e.g. "FP8".
    """
    if name not in _BY_TENSORRT:
        raise PublishError(
            f"Triton serves no tensor of TensorRT's type {name}",
            fix="cast it in the model",
        )
    return _BY_TENSORRT[name]
