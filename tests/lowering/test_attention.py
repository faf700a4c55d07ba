"""The scale of attention moves before the product for half precision, and after it for full
precision, if the queries are certainly floats.
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
    """Attention of published models, written with matmul; `reads` names what is also an output."""

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


def scales_first_in_half_precision(module: nn.Module, x: Tensor) -> bool:
    """Whether the form for half precision scales before the first product; the form for full
    precision must not.
    """
    half, full = forms(module, x)
    assert not scales_first(full)
    return scales_first(half)


def forms(module: nn.Module, x: Tensor) -> list[LoweredGraph]:
    """The forms for half and full precision; both must give the module's outputs."""
    lowered = builder.lower(saved(torch.jit.trace(module.eval(), x, check_trace=False)))
    graphs = [for_precision(lowered, half) for half in (True, False)]
    for form in graphs:
        for output, expected in zip(form.run(x), module(x), strict=True):
            torch.testing.assert_close(output, expected)
    return graphs


def scales_first(lowered: LoweredGraph) -> bool:
    """Whether the first product's operand is a quotient or a multiple, also behind moved axes."""
    operand = (
        next(node for node in lowered.graph.nodes() if node.kind() == "aten::matmul")
        .inputsAt(0)
        .node()
    )
    while operand.kind() in ("aten::transpose", "aten::reshape"):
        operand = operand.inputsAt(0).node()
    return operand.kind() in ("aten::div", "aten::mul")


def test_scale_moves_before_product_in_half_precision() -> None:
    assert scales_first_in_half_precision(Attention(), torch.randn(2, 5, 12))


def test_scores_with_another_reader_keep_their_scale() -> None:
    assert not scales_first_in_half_precision(
        Attention("product"), torch.randn(2, 5, 12)
    )


def test_attention_of_float16_keeps_its_scale() -> None:
    """TensorRT 8.6 on an H200: "Could not find any implementation", if the scale is before the
    product.
    """
    assert not scales_first_in_half_precision(
        Attention().half(), torch.randn(2, 5, 12).half()
    )


MASKS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "scores + mask": lambda scores, mask: scores + mask.float(),
    "mask + scores": lambda scores, mask: mask.float() + scores,
    "masked_fill": lambda scores, mask: scores.masked_fill(mask, -1e4),
    "where": lambda scores, mask: torch.where(mask, -1e4, scores),
    "bias and masked_fill": (
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
def test_mask_stays_after_product_when_scale_moves(mask: str) -> None:
    assert scales_first_in_half_precision(Masked(MASKS[mask]), torch.randn(2, 5, 12))


class AddedWithAlpha(nn.Module):
    """The sum multiplies the scores by alpha, so the other operand is not a mask."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        scores = torch.matmul(self.query(x), self.key(x).transpose(-1, -2)) / 4
        return (torch.softmax(torch.add(torch.ones(5, 5), scores, alpha=3), dim=-1),)


def test_scores_multiplied_by_alpha_keep_their_scale() -> None:
    assert not scales_first_in_half_precision(AddedWithAlpha(), torch.randn(2, 5, 12))


class Raw(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (torch.softmax(torch.matmul(x, x.transpose(-1, -2)) / 8, dim=-1),)


@pytest.mark.parametrize("x", [torch.randint(-3, 3, (2, 5, 4)), torch.randn(2, 5, 4)])
def test_scale_of_possible_integers_is_not_moved(x: Tensor) -> None:
    assert not scales_first_in_half_precision(Raw(), x)


class Fused(nn.Module):
    """torch's attention, whose decomposition scales the queries."""

    def __init__(self, mask: Tensor | None = None, concatenated: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(12, 12) for _ in range(3))
        self.mask, self.concatenated = mask, concatenated

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (
            part(x).view(x.size(0), -1, 3, 4).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        if self.concatenated:  # as in a rotary embedding of a part of each head
            q = torch.cat([-q[..., :2], q[..., 2:]], -1)
        return (F.scaled_dot_product_attention(q, k, v, self.mask),)


KEYS = torch.tensor([True, True, True, False, True])


@pytest.mark.parametrize(
    "module",
    [Fused(), Fused(KEYS[None]), Fused(torch.randn(5, 5)), Fused(concatenated=True)],
)
def test_scaled_dot_product_attention_scales_by_precision(
    module: nn.Module,
) -> None:
    assert scales_first_in_half_precision(module, torch.randn(2, 5, 12))


class Scaled(nn.Module):
    """As in BART: the projection is scaled before the heads are split. With `reads`, the scaled
    projection is also an output.
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


def test_scale_before_split_of_heads_is_found() -> None:
    assert scales_first_in_half_precision(Scaled(), torch.randn(2, 5, 12))


def test_scaled_queries_with_another_reader_stay_scaled() -> None:
    assert all(
        scales_first(form) for form in forms(Scaled(reads=True), torch.randn(2, 5, 12))
    )


class ScaledIntegers(nn.Module):
    """Integers that become floats by the scale."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (
            torch.softmax(
                torch.matmul((x > 0).to(torch.int32) * 0.5, x.transpose(-1, -2)), dim=-1
            ),
        )


def test_integer_queries_stay_scaled_before_product() -> None:
    assert all(
        scales_first(form) for form in forms(ScaledIntegers(), torch.randn(2, 5, 12))
    )
