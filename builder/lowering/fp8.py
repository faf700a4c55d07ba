"""Fake quantization to float8 (E4M3). torch has no such operator, so trt-build registers one.

A saved file has plain operators in its place, because it must run without trt-build.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from builder.decompositions import Decomposition

FP8_SCHEMA = (
    "trt_build::fake_quantize_fp8(Tensor self, Tensor scale, int? axis=None) -> Tensor"
)
FP8_KIND = FP8_SCHEMA.partition("(")[0]
FP8_LIMIT = 448.0
"""The largest finite float8_e4m3fn. Beyond it, torch's cast returns NaN and TensorRT saturates."""


def fake_quantize_fp8(self: Tensor, scale: Tensor, axis: int | None = None) -> Tensor:
    """Round a tensor to multiples of float8_e4m3fn values by `scale` (float32: one element, or one
    for each index of `axis`), ties to even, saturated. Returns the tensor's dtype.
    """
    factor = scale
    if axis is not None:
        shape = [1] * self.dim()
        shape[axis] = -1
        factor = scale.reshape(shape)
    steps = torch.clamp(self.to(torch.float) / factor, -FP8_LIMIT, FP8_LIMIT)
    return (steps.to(torch.float8_e4m3fn).to(torch.float) * factor).to(self.dtype)


FORMULA = Decomposition(FP8_SCHEMA, fake_quantize_fp8)
"""The decomposition of the operator in saved files.

It is not in the table of decompositions, because conversion has a layer for the operator.
"""


_TORCH: Any = torch.library  # without types
_LIBRARY = _TORCH.Library("trt_build", "FRAGMENT")
_LIBRARY.define(FP8_SCHEMA.partition("::")[2])
_LIBRARY.impl("fake_quantize_fp8", fake_quantize_fp8, "CompositeExplicitAutograd")
