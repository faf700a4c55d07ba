"""Dictionaries of objects that a module holds, as the layers of einops do, and the loops over their
lists.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import builder
from tests.conversion.harness import check
from tests.torchscript.saving import saved

BATCHES = {0: {0: "n"}}


class Recipe:
    """What an einops layer does for an input of one rank."""

    def __init__(
        self, scale: float, order: list[int], groups: list[tuple[list[int], list[int]]]
    ) -> None:
        self.scale = scale
        self.order = order
        self.groups = groups


class Rearranged(nn.Module):
    """Reads lists of tuples of the object for the input's rank, in a loop with `continue`."""

    def __init__(self, ranks: list[int]) -> None:
        super().__init__()
        groups: list[tuple[list[int], list[int]]] = [([], [0]), ([2], [1])]
        recipes = {rank: Recipe(rank * 0.5, [0, 2, 1], groups) for rank in ranks}
        self.recipes = torch.jit.Attribute(recipes, dict[int, Recipe])

    def forward(self, x: Tensor) -> Tensor:
        recipe = self.recipes[x.ndim]
        return x.permute(recipe.order) * recipe.scale


class Grouped(Rearranged):
    def forward(self, x: Tensor) -> Tensor:
        recipe = self.recipes[x.ndim]
        lengths = [-1, -1, 4]
        for axis, (known, unknown) in enumerate(recipe.groups):
            if len(known) == 0:
                lengths[unknown[0]] = x.shape[axis]
                continue
            lengths[unknown[0]] = x.shape[axis] // lengths[known[0]]
        return x.reshape(lengths) * recipe.scale


@pytest.mark.parametrize("module", [Rearranged([3]), Rearranged([2, 3])])
def test_the_object_of_the_inputs_rank_is_read(module: nn.Module) -> None:
    check(module, torch.randn(2, 3, 4), dynamic=BATCHES, compile=False)


def test_loops_over_lists_of_tuples_of_the_object() -> None:
    check(
        Grouped([2]),
        torch.randn(2, 12),
        dynamic=BATCHES,
        more=[(torch.randn(4, 12),)],
        compile=False,
    )


class Counted(nn.Module):
    """A loop of torch.jit that only a compared counter ends."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first

    def forward(self, x: Tensor) -> Tensor:
        sizes = [1, 1, 1]
        index, go_on = self.first, True
        while go_on:
            sizes[index] = x.size(0)
            index += 1
            go_on = index < 2
        return x.sum() + torch.ones(sizes)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_loop_ends_when_its_counter_reaches_a_constant(first: int) -> None:
    """A first value that is not below the bound gives one iteration."""
    module = saved(torch.jit.script(Counted(first)))
    lowered = builder.lower(module)
    x = torch.randn(3)
    torch.testing.assert_close(lowered.run(x)[0], module(x), rtol=0, atol=0)
    assert "prim::Loop" not in str(lowered.graph)
