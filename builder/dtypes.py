"""One table of element types, by their names in torch, TorchScript, TensorRT and Triton.

The module imports torch only when a torch.dtype is requested: the manifest and the command line
read the names alone.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class Dtype(NamedTuple):
    """One element type."""

    name: str
    """torch's name, such as "float16"."""

    scalar_type: str
    """The name in c10/core/ScalarType.h, such as "Half": `HalfStorage`, `aten::_cast_Half`."""

    code: int
    """The number in c10/core/ScalarType.h, by which TorchScript passes dtypes."""

    tensorrt: str | None = None
    """The name in `trt.DataType`; None if TensorRT has no such type."""

    triton: str | None = None
    """Triton's name in a request, such as "FP16" (`TYPE_FP16` in a config); None if it has none."""

    aliases: tuple[str, ...] = ()
    """Other names that users write."""


TABLE = (
    Dtype("bool", "Bool", 11, "BOOL", "BOOL", ("boolean",)),
    Dtype("uint8", "Byte", 0, "UINT8", "UINT8", ("byte",)),
    Dtype("int8", "Char", 1, "INT8", "INT8", ("char",)),
    Dtype("int16", "Short", 2, None, "INT16"),
    Dtype("int32", "Int", 3, "INT32", "INT32", ("int",)),
    Dtype("int64", "Long", 4, "INT64", "INT64", ("long",)),
    Dtype("float16", "Half", 5, "HALF", "FP16", ("half", "fp16", "f16")),
    Dtype("bfloat16", "BFloat16", 15, "BF16", "BF16", ("bf16",)),
    Dtype("float32", "Float", 6, "FLOAT", "FP32", ("float", "fp32", "single", "f32")),
    Dtype("float64", "Double", 7, None, "FP64", ("double", "fp64", "f64")),
    Dtype("complex32", "ComplexHalf", 8),
    Dtype("complex64", "ComplexFloat", 9),
    Dtype("complex128", "ComplexDouble", 10),
    Dtype("qint8", "QInt8", 12),
    Dtype("quint8", "QUInt8", 13),
    Dtype("qint32", "QInt32", 14),
    Dtype("float8_e5m2", "Float8_e5m2", 23),
    Dtype("float8_e4m3fn", "Float8_e4m3fn", 24, "FP8"),
    Dtype("float8_e5m2fnuz", "Float8_e5m2fnuz", 25),
    Dtype("float8_e4m3fnuz", "Float8_e4m3fnuz", 26),
    Dtype("uint16", "UInt16", 27),
    Dtype("uint32", "UInt32", 28),
    Dtype("uint64", "UInt64", 29),
    Dtype("float8_e8m0fnu", "Float8_e8m0fnu", 44),
)

ENDPOINT_DTYPES = tuple(
    entry.name for entry in TABLE if entry.triton and entry.name != "int16"
)
"""The dtypes that a manifest may declare: those of Triton except int16, which TensorRT does not
support as an input.
"""

ALIASES = {alias: entry.name for entry in TABLE for alias in entry.aliases}


def name_of(dtype: torch.dtype) -> str:
    """torch's name of a dtype, such as "float16"."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(entry: Dtype) -> torch.dtype:
    """The torch.dtype of an entry."""
    import torch

    dtype: torch.dtype = getattr(torch, entry.name)
    return dtype


def dtype_of(code: int) -> torch.dtype | None:
    """The torch.dtype of TorchScript's number for it; None for a number that the table lacks."""
    return _dtypes().get(code)


def code_of(dtype: torch.dtype) -> int:
    """TorchScript's number of a torch.dtype. Raises KeyError for a dtype that the table lacks."""
    return _codes()[dtype]


@cache
def _dtypes() -> dict[int, torch.dtype]:
    return {entry.code: torch_dtype(entry) for entry in TABLE}


@cache
def _codes() -> dict[torch.dtype, int]:
    return {dtype: code for code, dtype in _dtypes().items()}
