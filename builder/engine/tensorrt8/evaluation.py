"""The dtypes that a weakly typed network reports, for the reference.

Half and float32 are interchangeable there, and a quantizing layer reports FLOAT.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from builder.engine import capabilities

UNREPORTED = {"QUANTIZE": torch.int8}
"""For each layer that reports FLOAT incorrectly, the dtype of its output."""

EITHER = (torch.float32, torch.float16)


def output_dtype(kind: str) -> torch.dtype | None:
    """The dtype of a layer's output if the layer reports it incorrectly, else None.

    `kind` is the LayerType's name.
    """
    if capabilities.current().strongly_typed:
        return None
    return UNREPORTED.get(kind)


def operands(values: list[Tensor | None]) -> list[Tensor | None]:
    """The operands of a layer. In a weakly typed network, half operands are converted to float32 if
    another operand is float32.
    """
    if capabilities.current().strongly_typed:
        return values
    dtypes = {value.dtype for value in values if value is not None}
    if torch.float32 not in dtypes:
        return values
    return [
        value.float() if value is not None and value.dtype == torch.float16 else value
        for value in values
    ]


def results(
    values: Sequence[Tensor], dtypes: Sequence[torch.dtype]
) -> tuple[Tensor, ...]:
    """The outputs of a layer. In a weakly typed network, half and float32 outputs are converted to
    the reported dtype.
    """
    if capabilities.current().strongly_typed:
        return tuple(values)
    return tuple(
        value.to(dtype) if value.dtype in EITHER and dtype in EITHER else value
        for value, dtype in zip(values, dtypes, strict=True)
    )
