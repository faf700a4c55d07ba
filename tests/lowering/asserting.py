"""Assertions on lowered graphs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from builder.lowering import LoweredGraph


def assert_equal_outputs(
    found: LoweredGraph, module: torch.nn.Module, inputs: Sequence[torch.Tensor]
) -> None:
    """Assert that the graph has the module's outputs, up to rounding."""
    expected = module(*inputs)
    wanted = expected if isinstance(expected, tuple) else [expected]
    for output, one in zip(found.run(*inputs), wanted, strict=True):
        torch.testing.assert_close(output, one, rtol=2e-6, atol=2e-6)
