"""Assertions on lowered graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from builder.lowering import LoweredGraph


def assert_equal_outputs(
    lowered: LoweredGraph,
    module: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    *,
    rtol: float = 2e-6,
    atol: float = 2e-6,
    equal_nan: bool = False,
) -> None:
    """Assert that the graph has the outputs of the module or function, up to rounding."""
    result = module(*inputs)
    expected = result if isinstance(result, tuple) else [result]
    for output, wanted in zip(lowered.run(*inputs), expected, strict=True):
        torch.testing.assert_close(
            output, wanted, rtol=rtol, atol=atol, equal_nan=equal_nan
        )


def kinds(lowered: LoweredGraph) -> Counter[str]:
    """How many nodes of each operator the graph has; names without `aten::`."""
    nodes = lowered.graph.nodes()
    return Counter(node.kind().removeprefix("aten::") for node in nodes)
