"""Where the scale of attention stands: before the product wherever the queries are certainly floats."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.lowering import LoweredGraph, for_half


class Attention(nn.Module):
    """Written out as published models have it; `reads` says what else reads the scores."""

    def __init__(self, reads: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(12, 12) for _ in range(3))
        self.reads = reads

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (part(x).view(x.size(0), -1, 3, 4).transpose(1, 2) for part in (self.query, self.key, self.value))
        scores = torch.matmul(q * 1.5 + 1, k.transpose(-1, -2))
        weights = torch.softmax(scores / math.sqrt(4.0), dim=-1)
        return torch.matmul(weights, v), scores if self.reads == "product" else weights


def scaled_first(module: nn.Module, x: Tensor) -> bool:
    """Whether a division makes what the first product multiplies for half precision; it never does for full, and the
    answer stays what it was."""
    lowered = builder.lower(torch.jit.trace(module.eval(), x, check_trace=False))
    halved = for_half(lowered)
    for got, wanted in zip(halved.run(x), module(x), strict=True):
        torch.testing.assert_close(got, wanted)
    assert not _scales_first(lowered)
    return _scales_first(halved)


def _scales_first(lowered: LoweredGraph) -> bool:
    product = next(node for node in lowered.graph.nodes() if node.kind() == "aten::matmul")
    return bool(product.inputsAt(0).node().kind() == "aten::div")


def test_the_scale_comes_before_the_product() -> None:
    assert scaled_first(Attention(), torch.randn(2, 5, 12))


def test_scores_that_others_read_stay_as_they_are() -> None:
    assert not scaled_first(Attention("product"), torch.randn(2, 5, 12))


def test_attention_in_half_stays_as_it_is() -> None:
    """8.6 on an H200: "Could not find any implementation", with the scale in front of the product."""
    assert not scaled_first(Attention().half(), torch.randn(2, 5, 12).half())


MASKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "added": lambda scores, mask: scores + mask.float(),
    "added to": lambda scores, mask: mask.float() + scores,
    "filled": lambda scores, mask: scores.masked_fill(mask, -1e4),
    "chosen": lambda scores, mask: torch.where(mask, -1e4, scores),
    "biased and filled": lambda scores, mask: (scores + 0.5 * mask).masked_fill(mask, float("-inf")),
}


class Masked(nn.Module):
    def __init__(self, mask: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.mask = nn.Linear(12, 12), nn.Linear(12, 12), mask

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        hidden = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        scores = torch.matmul(self.query(x), self.key(x).transpose(-1, -2)) / math.sqrt(12.0)
        return (torch.softmax(self.mask(scores, hidden), dim=-1),)


@pytest.mark.parametrize("mask", list(MASKS))
def test_a_mask_stays_behind_the_product(mask: str) -> None:
    assert scaled_first(Masked(MASKS[mask]), torch.randn(2, 5, 12))


class Weighed(nn.Module):
    """The sum is a quotient's times the scores: no mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        scores = torch.matmul(self.query(x), self.key(x).transpose(-1, -2)) / 4
        return (torch.softmax(torch.add(torch.ones(5, 5), scores, alpha=3), dim=-1),)


def test_scores_that_are_weighed_in_a_sum_stay_as_they_are() -> None:
    assert not scaled_first(Weighed(), torch.randn(2, 5, 12))


class Raw(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (torch.softmax(torch.matmul(x, x.transpose(-1, -2)) / 8, dim=-1),)


@pytest.mark.parametrize("x", [torch.randint(-3, 3, (2, 5, 4)), torch.randn(2, 5, 4)])
def test_what_may_be_integers_stays_as_it_is(x: Tensor) -> None:
    assert not scaled_first(Raw(), x)
