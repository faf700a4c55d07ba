"""Where the scale of attention stands: before the product wherever the queries are certainly floats."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import builder


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
    """Whether a division makes what the first product multiplies; the answer stays what it was."""
    traced = torch.jit.trace(module.eval(), x, check_trace=False)
    lowered = builder.lower(traced)
    for got, wanted in zip(lowered.run(x), module(x), strict=True):
        torch.testing.assert_close(got, wanted)
    product = next(node for node in lowered.graph.nodes() if node.kind() == "aten::matmul")
    return bool(product.inputsAt(0).node().kind() == "aten::div")


def test_the_scale_comes_before_the_product() -> None:
    assert scaled_first(Attention(), torch.randn(2, 5, 12))


def test_scores_that_others_read_stay_as_they_are() -> None:
    assert not scaled_first(Attention("product"), torch.randn(2, 5, 12))


def test_attention_in_half_stays_as_it_is() -> None:
    """8.6 on an H200: "Could not find any implementation", with the scale in front of the product."""
    assert not scaled_first(Attention().half(), torch.randn(2, 5, 12).half())


class Raw(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (torch.softmax(torch.matmul(x, x.transpose(-1, -2)) / 8, dim=-1),)


@pytest.mark.parametrize("x", [torch.randint(-3, 3, (2, 5, 4)), torch.randn(2, 5, 4)])
def test_what_may_be_integers_stays_as_it_is(x: Tensor) -> None:
    assert not scaled_first(Raw(), x)
