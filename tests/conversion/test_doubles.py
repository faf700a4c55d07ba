"""Sizes computed by way of floats: TorchScript's are doubles, and the last bit decides a length."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from builder.engine import capabilities
from tests.conversion.harness import check, convert


class Scaled(nn.Module):
    """The first int(length * factor) elements."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : int(x.size(1) * self.factor)]


class Ceiled(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : math.ceil(x.size(1) / self.factor)]


class Floored(Scaled):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, : math.floor(float(x.size(1)) / 2 - self.factor)]


class Rooted(nn.Module):
    """Patches in a row, put back in a square."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = int(math.sqrt(x.size(1)))
        return x.view(x.size(0), side, side)


class Powered(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = int(x.size(1) ** 0.5)
        return x.reshape(-1, side, side).transpose(1, 2)


LENGTHS = (10, 1, 3, 7, 20, 29, 49, 50, 70, 90, 99, 100)


@pytest.mark.parametrize("factor", [0.7, 0.29, 0.1, 1 / 3, 0.57, 0.999999999, 0.5, 1.0])
@pytest.mark.parametrize("kind", [Scaled, Ceiled, Floored])
def test_lengths_are_computed_in_float64(kind: type[Scaled], factor: float) -> None:
    first, *others = (
        torch.arange(2.0 * n).view(2, n)
        for n in LENGTHS
        if kind is not Floored or n > 3
    )
    if kind is Ceiled and factor < 1:
        factor = 1 / factor
    more = [(x,) for x in others]
    check(
        kind(factor),
        first,
        dynamic={0: {1: "n"}},
        spans={"n": (1, 10, 100)},
        more=more,
        compile=factor == 0.7,
    )


UNFOUND = pytest.mark.xfail(
    not capabilities.current().strongly_typed,
    strict=False,
    reason="8.6: guessBestTactic cannot find a tactic for the reshape",
)


@pytest.mark.parametrize("kind", [pytest.param(Rooted, marks=UNFOUND), Powered])
def test_square_root_of_length(kind: type[nn.Module]) -> None:
    first, *others = (torch.arange(2.0 * n).view(2, n) for n in (16, 1, 4, 49, 10000))
    check(
        kind(),
        first,
        dynamic={0: {1: "n"}},
        spans={"n": (1, 16, 10000)},
        more=[(x,) for x in others],
    )


def test_float32_lengths_differ_from_float64() -> None:
    """Lengths where the float32 product falls on the other side of a whole number."""
    differing = [
        n
        for n in range(1, 101)
        for f in (0.29, 0.57)
        if int(n * f) != int(torch.tensor(n * 1.0) * f)
    ]
    assert differing


def test_simple_ratio_needs_no_gather() -> None:
    conversion = convert(Scaled(0.5), [torch.randn(2, 8)], dynamic={0: {1: "n"}})
    kinds = {
        type(conversion.network.get_layer(i)).__name__
        for i in range(conversion.network.num_layers)
    }
    assert "IGatherLayer" not in kinds
