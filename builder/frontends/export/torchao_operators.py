"""Declares torchao's operators for programs with rounded activations, so that torch can run them
without torchao.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_SCHEMAS = (
    "quantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point,"
    " ScalarType output_dtype, Scalar? quant_min=None, Scalar? quant_max=None) -> Tensor",
    "dequantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point,"
    " ScalarType input_dtype, Scalar? quant_min=None, Scalar? quant_max=None,"
    " ScalarType output_dtype=6) -> Tensor",
    "choose_qparams_affine(Tensor? input, str mapping_type, SymInt[] block_size,"
    " ScalarType target_dtype, Scalar? quant_min=None, Scalar? quant_max=None, float? eps=None,"
    " ScalarType? scale_dtype=None, ScalarType? zero_point_dtype=None, bool keepdim=False)"
    " -> (Tensor, Tensor)",
)
"""The schemas as torchao 0.18 declares them."""
_libraries: list[Any] = []


def register() -> None:
    """Declare the operators, unless they are declared or torchao is installed.

    torchao declares them itself, and torch raises an error for a second declaration.
    """
    if hasattr(torch.ops.torchao, "choose_qparams_affine"):
        return
    if importlib.util.find_spec("torchao") is not None:
        importlib.import_module("torchao.quantization.quant_primitives")
        return
    create: Any = torch.library.Library
    library = create("torchao", "FRAGMENT")
    functions = (quantize_affine, dequantize_affine, choose_qparams_affine)
    for schema, function in zip(_SCHEMAS, functions, strict=True):
        library.define(schema)
        library.impl(function.__name__, function, "CompositeImplicitAutograd")
    _libraries.append(library)


def _blocks(
    x: Tensor, block_size: Sequence[int]
) -> tuple[list[int], list[int], list[int]]:
    """Return the shape with an axis of blocks before each axis within a block, the positions of
    those axes, and the shape with length 1 for them.
    """
    whole: list[int] = []
    for length, size in zip(x.shape, block_size, strict=True):
        whole += [length // size, size]
    inner = list(range(1, len(whole), 2))
    reduced = list(whole)
    for axis in inner:
        reduced[axis] = 1
    return whole, inner, reduced


def _range(low: Any, high: Any) -> tuple[Any, Any]:
    return -128 if low is None else low, 127 if high is None else high


def quantize_affine(
    input: Tensor,
    block_size: Sequence[int],
    scale: Tensor,
    zero_point: Tensor | None,
    output_dtype: torch.dtype,
    quant_min: Any = None,
    quant_max: Any = None,
) -> Tensor:
    """Return integers of `output_dtype`, with one scale for each block; `input` is float."""
    low, high = _range(quant_min, quant_max)
    whole, _, blocks = _blocks(input, block_size)
    steps = torch.round(input.view(whole) * (1.0 / scale.view(blocks)))
    if zero_point is not None and zero_point.numel():
        steps = steps + zero_point.view(blocks)
    return torch.clamp(steps, low, high).view(input.shape).to(output_dtype)


def dequantize_affine(
    input: Tensor,
    block_size: Sequence[int],
    scale: Tensor,
    zero_point: Tensor | None,
    input_dtype: torch.dtype,
    quant_min: Any = None,
    quant_max: Any = None,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the dequantized floats of `output_dtype`."""
    whole, _, blocks = _blocks(input, block_size)
    steps = input.to(output_dtype).view(whole)
    if zero_point is not None:
        steps = steps - zero_point.to(output_dtype).view(blocks)
    return (steps * scale.view(blocks)).view(input.shape).to(output_dtype)


def choose_qparams_affine(
    input: Tensor,
    mapping_type: str,
    block_size: Sequence[int],
    target_dtype: torch.dtype,
    quant_min: Any = None,
    quant_max: Any = None,
    eps: float | None = None,
    scale_dtype: torch.dtype | None = None,
    zero_point_dtype: torch.dtype | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return scale and zero point of each block. Raises ValueError for asymmetric scales."""
    if mapping_type != "SYMMETRIC":
        raise ValueError(f"scales of the kind {mapping_type} need torchao")
    low, high = _range(quant_min, quant_max)
    whole, inner, blocks = _blocks(input, block_size)
    greatest = input.view(whole).abs().amax(inner)
    scale = greatest / (float(high - low) / 2)
    least = eps
    if eps is None:
        least = torch.finfo(input.dtype).smallest_normal
    scale = torch.clamp(scale, min=least).to(
        input.dtype if scale_dtype is None else scale_dtype
    )
    if keepdim:
        scale = scale.view(
            [length for axis, length in enumerate(blocks) if axis not in inner]
        )
    zero = torch.full_like(scale, int((high + low + 1) / 2))
    return scale, zero if zero_point_dtype is None else zero.to(zero_point_dtype)
