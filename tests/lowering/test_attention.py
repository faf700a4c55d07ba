"""Where the scale of attention stands, where the queries are certainly floats: before the product
for half precision, behind it for full.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import builder
from builder.lowering import LoweredGraph, for_precision
from tests.torchscript.saving import saved


class Attention(nn.Module):
    """Written out as published models have it; `reads` says what else reads the scores."""

    def __init__(self, reads: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(12, 12) for _ in range(3))
        self.reads = reads

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q, k, v = (
            part(x).view(x.size(0), -1, 3, 4).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        scores = torch.matmul(q * 1.5 + 1, k.transpose(-1, -2))
        weights = torch.softmax(scores / math.sqrt(4.0), dim=-1)
        return torch.matmul(weights, v), scores if self.reads == "product" else weights


def scaled_first(module: nn.Module, x: Tensor) -> bool:
    """Whether a division makes what the first product multiplies for half precision; it does not
    for full.
    """
    half, full = forms(module, x)
    assert not scales_first(full)
    return scales_first(half)


def forms(module: nn.Module, x: Tensor) -> list[LoweredGraph]:
    """For half precision and for full; the answers of both stay what they were."""
    lowered = builder.lower(saved(torch.jit.trace(module.eval(), x, check_trace=False)))
    found = [for_precision(lowered, half) for half in (True, False)]
    for form in found:
        for got, wanted in zip(form.run(x), module(x), strict=True):
            torch.testing.assert_close(got, wanted)
    return found


def scales_first(lowered: LoweredGraph) -> bool:
    """Whether a quotient or a multiple is what the first product multiplies, moved or not."""
    operand = (
        next(node for node in lowered.graph.nodes() if node.kind() == "aten::matmul")
        .inputsAt(0)
        .node()
    )
    while operand.kind() in ("aten::transpose", "aten::reshape"):
        operand = operand.inputsAt(0).node()
    return operand.kind() in ("aten::div", "aten::mul")


def test_the_scale_comes_before_the_product() -> None:
    assert scaled_first(Attention(), torch.randn(2, 5, 12))


def test_scores_that_others_read_stay_as_they_are() -> None:
    assert not scaled_first(Attention("product"), torch.randn(2, 5, 12))


def test_attention_in_half_stays_as_it_is() -> None:
    """8.6 on an H200: "Could not find any implementation", with the scale in front of the
    product.
    """
    assert not scaled_first(Attention().half(), torch.randn(2, 5, 12).half())


MASKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "added": lambda scores, mask: scores + mask.float(),
    "added to": lambda scores, mask: mask.float() + scores,
    "filled": lambda scores, mask: scores.masked_fill(mask, -1e4),
    "chosen": lambda scores, mask: torch.where(mask, -1e4, scores),
    "biased and filled": (
        lambda scores, mask: (scores + 0.5 * mask).masked_fill(mask, float("-inf"))
    ),
}


class Masked(nn.Module):
    def __init__(self, mask: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.mask = nn.Linear(12, 12), nn.Linear(12, 12), mask

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        hidden = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        scores = torch.matmul(self.query(x), self.key(x).transpose(-1, -2)) / math.sqrt(
            12.0
        )
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


class Fused(nn.Module):
    """torch's own attention, whose formula scales the queries."""

    def __init__(self, mask: Tensor | None = None, joined: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(12, 12) for _ in range(3))
        self.mask, self.joined = mask, joined

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (
            part(x).view(x.size(0), -1, 3, 4).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        if self.joined:  # as where a part of each head is turned by its position
            q = torch.cat([-q[..., :2], q[..., 2:]], -1)
        return (F.scaled_dot_product_attention(q, k, v, self.mask),)


KEYS = torch.tensor([True, True, True, False, True])


@pytest.mark.parametrize(
    "module", [Fused(), Fused(KEYS[None]), Fused(torch.randn(5, 5)), Fused(joined=True)]
)
def test_attention_of_torch_is_scaled_where_the_precision_wants_it(
    module: nn.Module,
) -> None:
    assert scaled_first(module, torch.randn(2, 5, 12))


class Scaled(nn.Module):
    """As BART has it: the projection is scaled, and the heads are split behind that; `reads` says
    what else reads the multiple.
    """

    def __init__(self, reads: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key = nn.Linear(12, 12), nn.Linear(12, 12)
        self.reads = reads

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        scaled = self.query(x) * 0.5
        q, k = (
            part.view(x.size(0), -1, 3, 4).transpose(1, 2)
            for part in (scaled, self.key(x))
        )
        weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)), dim=-1)
        return (weights, scaled) if self.reads else (weights,)


def test_a_scale_is_found_before_the_heads_are_split() -> None:
    assert scaled_first(Scaled(), torch.randn(2, 5, 12))


def test_a_multiple_that_others_read_stays_as_it_is() -> None:
    assert all(
        scales_first(form) for form in forms(Scaled(reads=True), torch.randn(2, 5, 12))
    )


class Counted(nn.Module):
    """Integers that the scale makes floats of."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.softmax(
                torch.matmul((x > 0).to(torch.int32) * 0.5, x.transpose(-1, -2)), dim=-1
            ),
        )


def test_integers_are_scaled_before_they_meet_floats() -> None:
    assert all(scales_first(form) for form in forms(Counted(), torch.randn(2, 5, 12)))
