"""A graph divided at its branches: running the parts equals running the whole graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.lowering import LoweredGraph
from builder.partition import Branch, branches, take_apart
from builder.partition.branches import Part
from builder.partition.extract import with_own_outputs


class Branching(nn.Module):
    """Conditions that are tensors, numbers, or both; blocks that read sizes, nothing of their own,
    or have a branch.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.special.bessel_j0(x)
        rows = x.size(0)
        if bool((y.sum() > 5).any()):
            z = torch.relu(self.first(y)) * rows
        else:
            z = torch.relu(self.second(x)) + torch.unique(y).numel()
        w = z + torch.special.bessel_j0(y)
        if rows > 1 and bool(x[0, 0] > 0.3):
            w = w + z if bool(w.sum() > 30) else w - y
        return w * 2, z


INPUTS = [
    torch.randn(3, 8, generator=torch.Generator().manual_seed(n)) * scale
    for n in range(8)
    for scale in (9, 0.01)
]


def run(
    parts: list[Part], values: dict[str, Tensor], chosen: list[int]
) -> dict[str, Tensor]:
    for part in parts:
        graph: LoweredGraph
        if isinstance(part, Branch):
            (decided,) = part.condition.run(
                *(values[name] for name in part.condition.inputs)
            )
            assert decided.dtype == torch.bool and decided.dim() == 0
            chosen.append(0 if decided else 1)
            graph = part.blocks[chosen[-1]]
        else:
            graph = part
        values.update(
            zip(
                part.outputs,
                graph.run(*(values[name] for name in graph.inputs)),
                strict=True,
            )
        )
    return values


@pytest.fixture(scope="module")
def lowered() -> LoweredGraph:
    return with_own_outputs(builder.lower(torch.jit.script(Branching().eval())))


def test_every_branch_combination_matches_the_whole_graph(
    lowered: LoweredGraph,
) -> None:
    parts = take_apart(lowered, branches(lowered))
    assert sum(isinstance(part, Branch) for part in parts) == 2
    combinations = set()
    for x in INPUTS:
        chosen: list[int] = []
        values = run(parts, {lowered.inputs[0]: x}, chosen)
        combinations.add(tuple(chosen))
        for name, wanted in zip(lowered.outputs, lowered.run(x), strict=True):
            torch.testing.assert_close(values[name], wanted, rtol=0, atol=0)
    assert (
        {way[0] for way in combinations} == {way[1] for way in combinations} == {0, 1}
    ), "the inputs select both blocks of each branch"


def test_unselected_branches_stay_in_one_graph(lowered: LoweredGraph) -> None:
    parts = take_apart(lowered, branches(lowered)[1:])
    assert [type(part) for part in parts].count(Branch) == 1
    values = run(parts, {lowered.inputs[0]: INPUTS[0]}, [])
    torch.testing.assert_close(
        values[lowered.outputs[0]], lowered.run(INPUTS[0])[0], rtol=0, atol=0
    )


def test_branch_that_creates_a_list_is_not_divided() -> None:
    class Lists(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            parts = [x]
            if bool(x.sum() > 0):
                parts = [x, torch.special.bessel_j0(x)]
            return torch.cat(parts)

    assert branches(with_own_outputs(builder.lower(torch.jit.script(Lists())))) == []
