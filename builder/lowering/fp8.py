"""Fake quantization to float8 (E4M3): one node while we work, plain operators in the file that is
served.

torch has no such operator, so this one is ours; `trt_build` need not be installed where a lowered
file runs, so what is saved has the formula in its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from builder.decompositions import Decomposition

FP8_SCHEMA = "trt_build::fake_quantize_fp8(Tensor self, Tensor scale, int? axis=None) -> Tensor"
FP8_KIND = FP8_SCHEMA.partition("(")[0]
FP8_LIMIT = 448.0
"""The greatest finite float8_e4m3fn; beyond it torch's cast gives NaN where TensorRT saturates."""


def _formula(self: Tensor, scale: Tensor, axis: int | None) -> Tensor:
    factor = scale
    if axis is not None:
        shape = [1] * self.dim()
        shape[axis] = -1
        factor = scale.reshape(shape)
    steps = torch.clamp(self.to(torch.float) / factor, -FP8_LIMIT, FP8_LIMIT)
    return (steps.to(torch.float8_e4m3fn).to(torch.float) * factor).to(self.dtype)


FORMULA = Decomposition(FP8_SCHEMA, _formula)
"""What a saved file has for the operator. It is in no table: conversion has a layer for it."""


def fake_quantize_fp8(
    x: torch.Tensor, scale: torch.Tensor, axis: int | None = None
) -> torch.Tensor:
    """x rounded to float8_e4m3fn times `scale` (float32: one element, or one for each place of
    `axis`), ties to even and saturated; in the dtype of x.
    """
    factor = (
        scale
        if axis is None
        else scale.reshape([-1 if i == axis % x.dim() else 1 for i in range(x.dim())])
    )
    steps = (x.float() / factor).clamp(-FP8_LIMIT, FP8_LIMIT)
    return (steps.to(torch.float8_e4m3fn).float() * factor).to(x.dtype)


_TORCH: Any = torch.library  # without types
_LIBRARY = _TORCH.Library("trt_build", "FRAGMENT")
_LIBRARY.define(FP8_SCHEMA.partition("::")[2])
_LIBRARY.impl("fake_quantize_fp8", fake_quantize_fp8, "CompositeExplicitAutograd")
