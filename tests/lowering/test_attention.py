"""The scale of attention moves before the product for half precision, and after it for full
precision, if the queries are certainly floats. For half precision it moves into the weights of the
queries' layer, if the layer has no other user.
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


def scaled_in_half_precision(module: nn.Module, x: Tensor) -> str:
    """The scaled value in the form for half precision; in the form for full precision it must be
    the scores.
    """
    half, full = forms(module, x)
    assert scaled(full) == "scores"
    return scaled(half)


def forms(module: nn.Module, x: Tensor) -> list[LoweredGraph]:
    """The forms for half and full precision; both must give the module's outputs."""
    lowered = builder.lower(saved(torch.jit.trace(module.eval(), x, check_trace=False)))
    graphs = [for_precision(lowered, half) for half in (True, False)]
    for form in graphs:
        for output, expected in zip(form.run(x), module(x), strict=True):
            torch.testing.assert_close(output, expected)
    return graphs


def scaled(lowered: LoweredGraph) -> str:
    """What a quotient or multiple scales: "queries", the first operand of the first product, also
    behind moved axes; "scores", the product; or "weights", if there is no such node.
    """
    nodes = list(lowered.graph.nodes())
    scales = [node for node in nodes if node.kind() in ("aten::div", "aten::mul")]
    product = next(node for node in nodes if node.kind() == "aten::matmul")
    operand = product.inputsAt(0).node()
    while operand.kind() in ("aten::transpose", "aten::reshape"):
        operand = operand.inputsAt(0).node()
    if operand in scales:
        return "queries"
    if any(node.inputsAt(0) == product.output() for node in scales):
        return "scores"
    return "weights"


def test_scale_moves_before_product_in_half_precision() -> None:
    assert scaled_in_half_precision(Attention(), torch.randn(2, 5, 12)) == "queries"


def test_scores_with_another_reader_keep_their_scale() -> None:
    assert (
        scaled_in_half_precision(Attention("product"), torch.randn(2, 5, 12))
        == "scores"
    )


def test_attention_of_float16_keeps_its_scale() -> None:
    """TensorRT 8.6 on an H200: "Could not find any implementation", if the scale is before the
    product.
    """
    assert (
        scaled_in_half_precision(Attention().half(), torch.randn(2, 5, 12).half())
        == "scores"
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
    assert (
        scaled_in_half_precision(Masked(MASKS[mask]), torch.randn(2, 5, 12))
        == "weights"
    )


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
    assert scaled_in_half_precision(AddedWithAlpha(), torch.randn(2, 5, 12)) == "scores"


class Raw(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (torch.softmax(torch.matmul(x, x.transpose(-1, -2)) / 8, dim=-1),)


@pytest.mark.parametrize("x", [torch.randint(-3, 3, (2, 5, 4)), torch.randn(2, 5, 4)])
def test_scale_of_possible_integers_is_not_moved(x: Tensor) -> None:
    assert scaled_in_half_precision(Raw(), x) == "scores"


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
    ("module", "half"),
    [
        (Fused(), "weights"),
        (Fused(KEYS[None]), "weights"),
        (Fused(torch.randn(5, 5)), "weights"),
        (Fused(concatenated=True), "queries"),
    ],
)
def test_scaled_dot_product_attention_scales_by_precision(
    module: nn.Module, half: str
) -> None:
    assert scaled_in_half_precision(module, torch.randn(2, 5, 12)) == half


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
    assert scaled_in_half_precision(Scaled(), torch.randn(2, 5, 12)) == "weights"


def test_scaled_queries_with_another_reader_stay_scaled() -> None:
    assert all(
        scaled(form) == "queries"
        for form in forms(Scaled(reads=True), torch.randn(2, 5, 12))
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
        scaled(form) == "queries"
        for form in forms(ScaledIntegers(), torch.randn(2, 5, 12))
    )


class Small(nn.Module):
    """Attention of one head; `size` is the standard deviation of the queries' weights, `factor`
    scales the scores. With `reads`, the queries are also an output.
    """

    def __init__(
        self, size: float = 0.2, factor: float = 0.25, reads: bool = False
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key = nn.Linear(12, 12, bias=False), nn.Linear(12, 12)
        nn.init.normal_(self.query.weight, std=size)
        self.factor, self.reads = factor, reads

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        q = self.query(x)
        scores = torch.matmul(q, self.key(x).transpose(-1, -2)) * self.factor
        weights = torch.softmax(scores, dim=-1)
        return (weights, q) if self.reads else (weights,)


@pytest.mark.parametrize(
    ("module", "half"),
    [
        (Small(), "weights"),
        (Small(factor=-1.5), "weights"),
        (Small(reads=True), "queries"),
        (Small(size=2e-4), "queries"),  # the new weights would be subnormal in float16
        (Small(size=2e4, factor=10.0), "queries"),  # and here infinite
        (Small(factor=0.0), "queries"),
    ],
)
def test_weights_take_the_scale_if_half_precision_represents_them(
    module: nn.Module, half: str
) -> None:
    assert scaled_in_half_precision(module, torch.randn(2, 5, 12)) == half
