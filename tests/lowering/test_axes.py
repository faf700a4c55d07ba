"""Another axis first at a graph's borders: the same numbers in another order, the given graph
unchanged.
"""

from __future__ import annotations

import pytest
import torch

from builder.lowering import lower
from builder.lowering.axes import first


class Mixing(torch.nn.Module):
    """Reads one input twice, hands another through, and gives one value out twice."""

    def forward(
        self, x: torch.Tensor, h: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = x.sum(-1) + h[1].sum(-1)
        new = h * 2 + h
        return y, h, new


def shown(axis: int, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.movedim(axis, 0)


@pytest.mark.parametrize("axis", [1, 2])
def test_the_numbers_are_the_same_in_another_order(axis: int) -> None:
    lowered = lower(torch.jit.script(Mixing()))
    x, h = torch.randn(3, 4), torch.randn(2, 3, 3)
    wanted = lowered.run(x, h)
    moved = first(lowered, {1: (axis, 3)}, {1: (axis, 3), 2: (axis, 3)})
    y, same, new = moved.run(x, shown(axis, h))
    torch.testing.assert_close(y, wanted[0])
    torch.testing.assert_close(same, shown(axis, wanted[1]))
    torch.testing.assert_close(new, shown(axis, wanted[2]))


def test_the_graph_that_was_given_stays_as_it_was() -> None:
    lowered = lower(torch.jit.script(Mixing()))
    before = lowered.text
    first(lowered, {1: (1, 3)}, {2: (1, 3)})
    assert lowered.text == before


def test_a_graph_without_nodes_can_be_turned_too() -> None:
    lowered = lower(torch.jit.script(torch.nn.Identity().eval()))
    assert lowered.outputs and not any(
        node.kind().startswith("aten::") for node in lowered.graph.nodes()
    )
    x = torch.randn(2, 3)
    (same,) = first(lowered, {0: (1, 2)}, {0: (1, 2)}).run(x.t())
    torch.testing.assert_close(same, x.t())
