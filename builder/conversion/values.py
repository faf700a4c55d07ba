"""The types of values that a converter or evaluator receives.

Other values are strings, None, and lists or dictionaries of values.
"""

from __future__ import annotations

from typing import Any

import torch

from builder.conversion.dynamic import DynamicScalar
from builder.conversion.dynamic import Size as Size
from builder.engine import ITensor as ITensor

Number = bool | int | float
"""A number that is known while the network is built."""

Scalar = Number | DynamicScalar
"""A number, static or computed by the network."""

Tensor = ITensor | torch.Tensor
"""A tensor that the network computes, or a static one."""

Operand = Tensor | Scalar
"""An operand of an element-wise layer."""

PerAxis = int | list[int]
"""An argument such as `kernel_size`: one number for all axes, or one for each."""


class Unset:
    """A value that no reachable path reads (`prim::Uninitialized`)."""


UNSET = Unset()


def item_of(value: object) -> Any:
    """The number in a static tensor of one element; other values as they are."""
    return value.item() if isinstance(value, torch.Tensor) else value
