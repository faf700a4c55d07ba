"""What a weakly typed network reports of dtypes, for the reference that evaluates it.

Half and float32 are taken for one another there, and a quantizing layer reports FLOAT.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from builder.engine import capabilities

UNREPORTED = {"QUANTIZE": torch.int8}
"""By layer, the dtype of the output where the layer reports FLOAT."""

EITHER = (torch.float32, torch.float16)


def output_dtype(kind: str) -> torch.dtype | None:
    """The dtype of a layer's output where the layer's own report is wrong; None if it is right.

    `kind` is the LayerType's name.
    """
    return None if capabilities.current().strongly_typed else UNREPORTED.get(kind)


def operands(values: list[Tensor | None]) -> list[Tensor | None]:
    """The operands of a layer; the half ones widened beside float32 where either is taken."""
    if capabilities.current().strongly_typed or not any(
        x is not None and x.dtype == torch.float32 for x in values
    ):
        return values
    return [x.float() if x is not None and x.dtype == torch.float16 else x for x in values]


def results(values: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> tuple[Tensor, ...]:
    """The outputs of a layer, in the dtypes that TensorRT reports where it takes either."""
    if capabilities.current().strongly_typed:
        return tuple(values)
    return tuple(
        value.to(dtype) if value.dtype in EITHER and dtype in EITHER else value
        for value, dtype in zip(values, dtypes, strict=True)
    )
