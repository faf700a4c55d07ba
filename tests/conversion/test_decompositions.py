"""Operators converted by decompositions: at dynamic shapes, in half precision, with settings, and
the effects of a decomposition on the walker. torch's operator database (opinfo.py: `losses`,
`composed`) runs their many samples; these are cases that it lacks.

Tolerances: sums of up to 60 terms in another order, 60 * 2^-24 is 4e-6; half precision has 2^-11 of
each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import builder
from builder.conversion.context import ConversionContext
from builder.conversion.decomposing import walked
from builder.conversion.network import NetworkBackend
from builder.conversion.walker import GraphWalker
from builder.decompositions import Decomposition
from builder.engine.network import new_network
from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, convert

CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 4e-6}
ROWS = {0: {0: "n"}, 1: {0: "n"}}


def pairs(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, 5, generator=generator), torch.randn(
        n, 5, generator=generator
    )


def labelled(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(n, 5), torch.arange(n) % 5


SCORES = {
    "mse": F.mse_loss,
    "l1": F.l1_loss,
    "smooth l1": lambda a, b, reduction: F.smooth_l1_loss(
        a, b, reduction=reduction, beta=0.7
    ),
    "huber": lambda a, b, reduction: F.huber_loss(a, b, reduction=reduction, delta=0.7),
    "soft margin": lambda a, b, reduction: F.soft_margin_loss(
        a, b.sign(), reduction=reduction
    ),
    "cross entropy with logits": lambda a, b, reduction: (
        F.binary_cross_entropy_with_logits(
            a, b.sigmoid(), pos_weight=torch.arange(1.0, 6.0), reduction=reduction
        )
    ),
    "cross entropy": lambda a, b, reduction: F.binary_cross_entropy(
        a.sigmoid(), b.sigmoid(), reduction=reduction
    ),
    "Kullback-Leibler": lambda a, b, reduction: F.kl_div(
        a.log_softmax(1), b.softmax(1), reduction=reduction
    ),
    "Kullback-Leibler of logarithms": lambda a, b, reduction: F.kl_div(
        a.log_softmax(1), b.log_softmax(1), reduction=reduction, log_target=True
    ),
    "triplet": lambda a, b, reduction: F.triplet_margin_loss(
        a, b, a * 0.5 + b, swap=True, reduction=reduction
    ),
}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", SCORES)
def test_losses_of_a_dynamic_batch(name: str, reduction: str) -> None:
    def loss(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return SCORES[name](a, b, reduction=reduction)  # type: ignore[no-any-return, operator]

    more = [pairs(1), pairs(8), pairs(5)]
    check(
        loss, *pairs(4), dynamic=ROWS, more=more, **CLOSE, compile=reduction == "mean"
    )


LABELLED = {
    "plain": {},
    "weighted": {"weight": torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5])},
    "ignoring": {"ignore_index": 2},
    "smooth": {"label_smoothing": 0.2},
    "all of it": {
        "weight": torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5]),
        "ignore_index": 0,
        "label_smoothing": 0.1,
    },
}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("name", LABELLED)
def test_cross_entropy_of_labels(name: str, reduction: str) -> None:
    def loss(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, labels, reduction=reduction, **LABELLED[name])  # type: ignore[arg-type]

    more = [labelled(8), labelled(5)]
    check(
        loss,
        *labelled(4),
        dynamic=ROWS,
        more=more,
        **CLOSE,
        compile=name == "all of it",
    )


def test_cross_entropy_of_pixels_and_of_probabilities() -> None:
    x, labels = torch.randn(2, 4, 3, 5), torch.randint(0, 4, (2, 3, 5))
    check(
        lambda x, y: F.cross_entropy(x, y),
        x,
        labels,
        dynamic={0: {2: "h"}, 1: {1: "h"}},
        **CLOSE,
    )
    check(
        lambda x, y: F.cross_entropy(x, y.softmax(1), label_smoothing=0.1),
        *pairs(4),
        dynamic=ROWS,
        **CLOSE,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_loss_keeps_its_dtype(dtype: torch.dtype) -> None:
    a, b = (t.to(dtype) for t in pairs(4))
    check(lambda a, b: F.huber_loss(a, b, reduction="none"), a, b, dynamic=ROWS)


RUNNING = {
    "cummax": lambda x: torch.cummax(x, 1),
    "cummin": lambda x: torch.cummin(x, -1),
    "logcumsumexp": lambda x: torch.logcumsumexp(x * 30, 1),
    "median": lambda x: torch.median(x, 1).values,
    "median, kept": lambda x: torch.median(x, -1, keepdim=True).values,
    "median of all": lambda x: torch.median(x),
    "mode": lambda x: torch.mode(x.round(), 1).values,
    "quantiles": lambda x: torch.quantile(x, torch.tensor([0.1, 0.5, 0.77]), 1),
    "quantiles past NaN": lambda x: torch.nanquantile(
        x.masked_fill(x > 0.8, float("nan")), torch.tensor([0.1, 0.5, 0.9]), 1
    ),
    "quantile past NaN": lambda x: torch.nanquantile(
        x.masked_fill(x < 0, float("nan")), 0.3, 0, True
    ),
    "cumulative trapezoids": lambda x: torch.cumulative_trapezoid(
        torch.cat([x, x], 1), dx=0.5, dim=1
    ),
    "nearest quantile": lambda x: torch.quantile(
        x, 0.3, 1, keepdim=True, interpolation="lower"
    ),
}


@pytest.mark.parametrize("name", RUNNING)
def test_order_and_scans_along_a_dynamic_axis(name: str) -> None:
    x = torch.randn(3, 7)
    more = [(torch.randn(1, 1),), (torch.randn(6, 14),), (torch.randn(2, 4),)]
    check(
        RUNNING[name],
        x,
        dynamic={0: {0: "n", 1: "m"}},
        more=more,
        **CLOSE,
        compile="kept" not in name,
    )


def test_running_extremes_keep_integers_and_their_last_place() -> None:
    x = torch.tensor([[3, 1, 3, -4, 7, 7], [2, 2, 1, 0, 2, -1]])
    for run in (torch.cummax, torch.cummin):
        check(lambda x, run=run: tuple(run(x, 1)), x)
        check(lambda x, run=run: tuple(run(x, 0)), x.float() * 2.0**100, compile=False)


NUMBERS = torch.tensor(
    [-3.5, -1.0, -0.0, 0.0, 0.25, 2.0, 1e20, float("inf"), -float("inf")]
)


@pytest.mark.parametrize(
    "run",
    [torch.hypot, torch.logaddexp, torch.logaddexp2, torch.copysign, torch.heaviside],
)
def test_binary_functions_at_edge_values(run: Any) -> None:
    a, b = NUMBERS.repeat_interleave(len(NUMBERS)), NUMBERS.repeat(len(NUMBERS))
    check(run, a, b, dynamic={0: {0: "n"}, 1: {0: "n"}}, **CLOSE)


BYTES = torch.tensor([[-128, 3, 127], [2, 0, 100]], dtype=torch.int8)
UNSIGNED = torch.tensor([[255, 3, 2], [200, 5, 101]], dtype=torch.uint8)
MIXED: dict[str, tuple[Callable[..., Any], torch.Tensor, torch.Tensor]] = {
    "hypot": (torch.hypot, BYTES, torch.full((2, 3), 0.5)),
    "copysign": (torch.copysign, BYTES, torch.full((2, 3), -0.5).half()),
    "copysign of half": (torch.copysign, BYTES.half(), -BYTES.float()),
    "xlogy": (torch.xlogy, torch.full((2, 3), 3.7), (BYTES.abs() + 1).half()),
    "xlog1py": (torch.special.xlog1py, torch.full((2, 3), 3.7), UNSIGNED.half()),
    "ldexp": (torch.ldexp, BYTES.half() / 2**14, UNSIGNED.int() % 20),
    "isclose": (
        lambda x, y: torch.isclose(x, y, rtol=0.0, atol=5.0),
        UNSIGNED,
        UNSIGNED.flip(1),
    ),
    "trapezoid": (lambda x, _: torch.trapezoid(x), UNSIGNED, UNSIGNED),
}


@pytest.mark.parametrize("name", MIXED)
def test_operands_are_promoted_before_they_are_used(name: str) -> None:
    """Neither small integers wrap around nor half tensors round in between."""
    run, a, b = MIXED[name]
    check(run, a, b)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode: str) -> None:
    class Bags(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = torch.nn.EmbeddingBag(12, 4, mode=mode, padding_idx=3)

        def forward(self, words: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
            return self.bags(words, starts)  # type: ignore[no-any-return]

    def bags(words: int, starts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(0, 12, (words,)), torch.tensor(starts)

    more = [bags(1, [0]), bags(16, [0, 0, 5, 9, 9, 15]), bags(7, [0, 7, 7])]
    check(
        Bags(),
        *bags(8, [0, 2, 5]),
        dynamic={0: {0: "words"}, 1: {0: "bags"}},
        more=more,
        **CLOSE,
    )


def test_max_unpool() -> None:
    class Around(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, positions = F.max_pool2d(x, [2, 2], return_indices=True)
            return F.max_unpool2d(
                y * 2, positions, [2, 2], output_size=[x.shape[2], x.shape[3]]
            )

    more = [(torch.randn(1, 3, 2, 4),), (torch.randn(2, 3, 16, 10),)]
    check(
        Around(),
        torch.randn(2, 3, 8, 6),
        dynamic={0: {0: "n", 2: "h", 3: "w"}},
        more=more,
    )


def test_layers_are_named_after_the_operator() -> None:
    graph = """
    graph(%x : Tensor, %3 : Tensor):
      %one : int = prim::Constant[value=1]()
      %0 : Tensor = aten::mse_loss(%x, %3, %one)
      %5 : Tensor = aten::add(%0, %0, %one)
      return (%5)"""
    conversion = check(
        graph, torch.randn(2, 3), torch.randn(2, 3), compile=False, **CLOSE
    )
    names = [
        conversion.network.get_layer(i).name
        for i in range(conversion.network.num_layers)
    ]
    assert all(name.startswith(("aten::mse_loss_0", "aten::add_0")) for name in names)
    assert len(set(names)) == len(names)


def test_decomposition_error_is_reported_for_operator() -> None:
    def inverted(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.matrix_power(x, -2)

    with pytest.raises(UnsupportedOperators, match="no layer that inverts a matrix"):
        convert(inverted, [torch.randn(3, 3)])
    with pytest.raises(
        UnsupportedOperators, match=r"decomposition has aten::topk.*keeps at most 3840"
    ) as refused:
        convert(lambda x: torch.median(x, 0).values, [torch.randn(9000)])
    assert [u.schema.split("(")[0] for u in refused.value.operators] == [
        "aten::median.dim"
    ]


def inverse(self: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.linalg_inv(self)  # type: ignore[no-any-return]


def test_refused_decomposition_restores_walker_state() -> None:
    made, network, messages = new_network()
    ctx = ConversionContext(network, [{}], messages)
    outer = GraphWalker(ctx, NetworkBackend(ctx))
    before = ctx.values
    with pytest.raises(builder.conversion.context.Unconvertible):
        walked(
            ctx,
            Decomposition("aten::square(Tensor self) -> Tensor", inverse),
            (ctx.net.add_input("x", made_float(), (2, 2)),),
        )
    assert ctx.values is before and ctx.walker is outer
    del made


def made_float() -> Any:
    from builder.engine.flavor import trt

    return trt.float32
