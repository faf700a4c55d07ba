"""`first` moves an axis of a graph's inputs and outputs to the front. The values stay the same, and
the original graph is unchanged.
"""

from __future__ import annotations

import pytest
import torch

from builder.lowering import lower
from builder.lowering.endpoints import axes_first


class Mixing(torch.nn.Module):
    """Reads one input several times, and also returns it unchanged."""

    def forward(
        self, x: torch.Tensor, h: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x.sum(-1) + h[1].sum(-1)
        new = h * 2 + h
        return y, h, new


def with_axis_first(axis: int, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.movedim(axis, 0)


@pytest.mark.parametrize("axis", [1, 2])
def test_outputs_match_with_another_axis_first(axis: int) -> None:
    lowered = lower(torch.jit.script(Mixing()))
    x, h = torch.randn(3, 4), torch.randn(2, 3, 3)
    expected = lowered.run(x, h)
    moved = axes_first(lowered, {1: (axis, 3)}, {1: (axis, 3), 2: (axis, 3)})
    y, same, new = moved.run(x, with_axis_first(axis, h))
    torch.testing.assert_close(y, expected[0])
    torch.testing.assert_close(same, with_axis_first(axis, expected[1]))
    torch.testing.assert_close(new, with_axis_first(axis, expected[2]))


def test_first_leaves_original_graph_unchanged() -> None:
    lowered = lower(torch.jit.script(Mixing()))
    before = lowered.text
    axes_first(lowered, {1: (1, 3)}, {2: (1, 3)})
    assert lowered.text == before


def test_axes_of_graph_without_nodes_are_moved() -> None:
    lowered = lower(torch.jit.script(torch.nn.Identity().eval()))
    assert lowered.outputs and not any(
        node.kind().startswith("aten::") for node in lowered.graph.nodes()
    )
    x = torch.randn(2, 3)
    (same,) = axes_first(lowered, {0: (1, 2)}, {0: (1, 2)}).run(x.t())
    torch.testing.assert_close(same, x.t())


class ByLayout(torch.nn.Module):
    """Reads the memory of an input."""

    def forward(
        self, x: torch.Tensor, h: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return x + h.as_strided([6], [1]) + h.stride(0), h * 2


def test_layout_read_by_the_graph_is_the_same() -> None:
    """The graph was accepted because its inputs are contiguous."""
    lowered = lower(torch.jit.script(ByLayout()))
    x, h = torch.zeros(6), torch.arange(6.0).reshape(2, 3)
    expected = lowered.run(x, h)
    first = h.t().contiguous()
    (y, _) = axes_first(lowered, {1: (1, 2)}, {1: (1, 2)}).run(x, first)
    torch.testing.assert_close(y, expected[0])
