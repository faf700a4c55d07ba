"""LSTM, GRU and RNN against torch: unrolled and as loops, stacked, reversed, from initial states.

Tolerance: the gates of each step are sums of a dozen products in another order (1e-6), pass an
activation and are inputs of the next of ten steps.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.conversion.harness import check, layer_kinds

CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
LAYERS: list[type[nn.Module]] = [nn.LSTM, nn.GRU, nn.RNN]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
    {"bias": False, "bidirectional": True, "dropout": 0.5, "num_layers": 2},
]
DYNAMIC = [
    None,
    pytest.param({0: "n"}, marks=pytest.mark.slow),
    {1: "t"},
    {0: "n", 1: "t"},
]


class Alone(nn.Module):
    """The layer with one input: nn.LSTM itself has an overloaded forward when scripted."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor):  # type: ignore[no-untyped-def]
        return self.inner(x)


class FromState(Alone):
    def forward(self, x: Tensor, h: Tensor):  # type: ignore[no-untyped-def]
        return self.inner(x, h)


class FromStates(Alone):
    def forward(self, x: Tensor, h: Tensor, c: Tensor):  # type: ignore[no-untyped-def]
        return self.inner(x, (h, c))


@pytest.mark.parametrize("axes", DYNAMIC)
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer(
    kind: type[nn.Module], settings: dict[str, Any], axes: dict[int, str] | None
) -> None:
    module = Alone(kind(5, 6, **settings))
    dynamic, more = None, []
    if axes:
        dynamic = {0: axes}
        more = [
            (torch.randn(*(1 if i in axes else n for i, n in enumerate((4, 3))), 5),)
        ]
    check(
        module,
        torch.randn(4, 3, 5),
        dynamic=dynamic,
        more=more,
        **CLOSE,
        compile=kind is nn.LSTM and axes == DYNAMIC[-1],
    )


@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.parametrize("steps", [1, 10, 100])
def test_a_long_sequence_is_a_loop(steps: int, trace: bool) -> None:
    module = Alone(nn.LSTM(3, 4, bidirectional=True))
    # a hundred steps of a contraction: the error stays that of a few steps
    conversion = check(
        module, torch.randn(steps, 2, 3), trace=trace, **CLOSE, compile=steps == 100
    )
    assert ("LOOP_OUTPUT" in layer_kinds(conversion)) == (steps > 16)


@pytest.mark.parametrize("axes", [None, {1: "n"}])
def test_given_states(axes: dict[int, str] | None) -> None:
    dynamic = {0: axes, 1: axes, 2: axes} if axes else None
    x, h, c = torch.randn(4, 3, 5), torch.randn(4, 3, 6), torch.randn(4, 3, 6)
    module = FromStates(nn.LSTM(5, 6, num_layers=2, bidirectional=True))
    check(module, x, h, c, dynamic=dynamic, **CLOSE)
    dynamic = {0: axes, 1: axes} if axes else None
    check(
        FromState(nn.GRU(5, 6, num_layers=2, bidirectional=True)),
        x,
        h,
        dynamic=dynamic,
        **CLOSE,
    )
    check(
        FromState(nn.RNN(5, 6, num_layers=4, nonlinearity="relu")),
        x,
        h,
        dynamic=dynamic,
        **CLOSE,
    )


@pytest.mark.parametrize("bias", [False, True])
def test_projections(bias: bool) -> None:
    module = Alone(
        nn.LSTM(5, 8, proj_size=3, bidirectional=True, num_layers=2, bias=bias)
    )
    check(module, torch.randn(4, 2, 5), dynamic={0: {0: "t", 1: "n"}}, **CLOSE)


def test_a_sequence_without_a_batch_axis() -> None:
    check(Alone(nn.LSTM(5, 6)), torch.randn(4, 5), **CLOSE, trace=True)


def test_half_precision() -> None:
    # sums of a dozen half products differ by 2^-10 each way and are fed on for four steps
    check(Alone(nn.GRU(5, 6).half()), torch.randn(4, 2, 5).half(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("axes", [None, {0: "n"}])
@pytest.mark.parametrize("kind", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_a_cell(kind: type[nn.Module], axes: dict[int, str] | None, bias: bool) -> None:
    module = (FromStates if kind is nn.LSTMCell else FromState)(kind(5, 6, bias=bias))
    states = [torch.randn(2, 6) for _ in range(2 if kind is nn.LSTMCell else 1)]
    inputs = [torch.randn(2, 5), *states]
    dynamic = dict.fromkeys(range(len(inputs)), axes) if axes else None
    more = [tuple(t[:1] for t in inputs)] if axes else []
    check(module, *inputs, dynamic=dynamic, more=more, **CLOSE, compile=bias)


def test_a_cell_in_a_loop_over_the_sequence() -> None:
    class Steps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(5, 6)

        def forward(self, x: Tensor, h: Tensor) -> Tensor:
            for t in range(4):
                h = self.cell(x[:, t], h)
            return h

    check(
        Steps(),
        torch.randn(2, 4, 5),
        torch.randn(2, 6),
        dynamic={0: {0: "n"}, 1: {0: "n"}},
        **CLOSE,
    )


class Output(Alone):
    """The layer's output without its final states."""

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


@pytest.mark.parametrize("steps", [5, 40])
def test_both_directions_share_each_step(steps: int) -> None:
    module = Output(nn.LSTM(3, 4, num_layers=2, bidirectional=True))
    network = check(module, torch.randn(steps, 2, 3), **CLOSE, compile=False).network
    kinds = [network.get_layer(index).type.name for index in range(network.num_layers)]
    assert kinds.count("MATRIX_MULTIPLY") == 2 + 2 * (steps if steps <= 16 else 1)
    # none for the final states, which are not used
    assert kinds.count("LOOP_OUTPUT") == (0 if steps <= 16 else 2)
