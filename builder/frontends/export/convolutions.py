"""Writes convolutions as in a trace: `_convolution` with all 13 arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

KIND = "aten::_convolution"
_AXES = {f"aten::conv{axes}d": axes for axes in (1, 2, 3)}
_TRANSPOSED = {f"aten::conv_transpose{axes}d": axes for axes in (1, 2, 3)}
_FLAGS = (False, False, True, True)
"""The flags benchmark, deterministic, use cuDNN, allow tf32. None changes the result."""


def arranged(
    kind: str, values: Sequence[Any], result: Any, constant: Callable[[Any], Any]
) -> list[Any] | None:
    """Return the arguments of `_convolution` for a call of convNd or conv_transposeNd.

    `result` is the call's result in the program; `constant` creates a value from a Python value.
    None for another operator, for padding as a string, and for an input without a batch, which
    `_convolution` does not accept.
    """
    axes = _AXES.get(kind) or _TRANSPOSED.get(kind)
    if axes is None or not isinstance(result, torch.Tensor) or result.dim() != axes + 2:
        return None
    if kind in _TRANSPOSED:
        x, weight, bias, stride, padding, output_padding, groups, dilation = values
    else:
        x, weight, bias, stride, padding, dilation, groups = values
        output_padding = None
    if padding.type().kind() == "StringType":
        return None
    transposed = constant(output_padding is not None)
    if output_padding is None:
        output_padding = constant([0] * axes)
    core = [
        x,
        weight,
        bias,
        stride,
        padding,
        dilation,
        transposed,
        output_padding,
        groups,
    ]
    return [*core, *map(constant, _FLAGS)]
