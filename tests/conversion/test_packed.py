"""Packed sequences against torch: padded batches whose rows end at their lengths.

Tolerance: as in test_recurrent.py. The gates of each step are sums of a dozen products in another
order (1e-6), pass an activation and are inputs of the next step.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
)

import builder
from builder.conversion import nonzero
from builder.conversion.extent import Extent, Lengths
from builder.errors import TrtBuildError, UnsupportedOperators
from tests.conversion.harness import check, convert, layer_kinds
from tests.conversion.test_recurrent import CLOSE

BOTH = {"n": (1, 3, 6), "t": (1, 5, 40)}
DYNAMIC = {0: {0: "n", 1: "t"}, 1: {0: "n"}}
"""Of a batch-first input and its lengths."""


class Packed(nn.Module):
    """Pack, run, pad: the padded output, the final states, and the lengths."""

    def __init__(
        self,
        rnn: nn.Module,
        batch_first: bool = True,
        enforce_sorted: bool = True,
        value: float = 0,
    ) -> None:
        super().__init__()
        self.rnn, self.batch_first, self.enforce_sorted, self.value = (
            rnn,
            batch_first,
            enforce_sorted,
            float(value),
        )

    def forward(self, x: Tensor, lengths: Tensor):  # type: ignore[no-untyped-def]
        packed = pack_padded_sequence(
            x, lengths.cpu(), self.batch_first, self.enforce_sorted
        )
        packed, states = self.rnn(packed)
        total = x.size(1) if self.batch_first else x.size(0)
        padded, given = pad_packed_sequence(packed, self.batch_first, self.value, total)
        return padded, states, given


class FromState(Packed):
    def forward(self, x: Tensor, lengths: Tensor, h: Tensor):  # type: ignore[no-untyped-def]
        packed = pack_padded_sequence(
            x, lengths.cpu(), self.batch_first, self.enforce_sorted
        )
        packed, states = self.rnn(packed, h)
        padded, given = pad_packed_sequence(
            packed, self.batch_first, self.value, x.size(1)
        )
        return padded, states, given


class FromStates(Packed):
    def forward(self, x: Tensor, lengths: Tensor, h: Tensor, c: Tensor):  # type: ignore[no-untyped-def]
        packed = pack_padded_sequence(
            x, lengths.cpu(), self.batch_first, self.enforce_sorted
        )
        packed, states = self.rnn(packed, (h, c))
        padded, given = pad_packed_sequence(
            packed, self.batch_first, self.value, x.size(1)
        )
        return padded, states, given


KINDS: dict[str, dict[str, Any]] = {
    "LSTM": {"make": nn.LSTM},
    "LSTM with projections": {"make": nn.LSTM, "proj_size": 3},
    "GRU": {"make": nn.GRU},
    "tanh": {"make": nn.RNN},
    "relu": {"make": nn.RNN, "nonlinearity": "relu"},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "one layer": {},
    "stacked, both directions": {"num_layers": 2, "bidirectional": True},
    "both directions without biases": {"bidirectional": True, "bias": False},
    "three layers, dropout of training": {"num_layers": 3, "dropout": 0.5},
}


FAST = {
    ("LSTM", "stacked, both directions"),
    ("GRU", "one layer"),
    ("tanh", "one layer"),
}
ORDERS = {(False, True, False), (True, False, True)}
LAYERS = [
    pytest.param(*both, marks=() if both in FAST else pytest.mark.slow)
    for both in itertools.product(KINDS, SETTINGS)
]


def layer(kind: str, batch_first: bool = True, **settings: Any) -> nn.Module:
    """A recurrent layer of five features and a width of six."""
    arguments = {**KINDS[kind], **settings, "batch_first": batch_first}
    return arguments.pop("make")(5, 6, **arguments)  # type: ignore[no-any-return]


def sample(*lengths: int, steps: int | None = None) -> tuple[Tensor, Tensor]:
    """A padded batch of rows of these lengths. The values after them must not be read as data."""
    x = torch.randn(len(lengths), steps or max(lengths), 5)
    for row, length in enumerate(lengths):
        x[row, length:] = 1e3
    return x, torch.tensor(lengths)


@pytest.mark.parametrize(("kind", "settings"), LAYERS)
def test_layer_of_static_shape_is_unrolled(kind: str, settings: str) -> None:
    module = Packed(layer(kind, **SETTINGS[settings]))
    check(module, *sample(4, 3, 1, steps=5), **CLOSE, compile=kind == "LSTM")


@pytest.mark.parametrize(("kind", "settings"), LAYERS)
def test_batch_and_time_dynamic(kind: str, settings: str) -> None:
    module = Packed(layer(kind, **SETTINGS[settings]), enforce_sorted=False)
    more = [
        sample(1),
        sample(7),
        sample(2, 6, 6, 1, steps=9),
        sample(*range(1, 7), steps=40),
    ]
    conversion = check(
        module,
        *sample(2, 5, 3),
        dynamic=DYNAMIC,
        spans=BOTH,
        more=more,
        **CLOSE,
        compile=kind == "GRU",
    )
    assert "LOOP_OUTPUT" in layer_kinds(conversion)


@pytest.mark.parametrize(
    ("batch_first", "enforce_sorted", "trace"),
    [
        pytest.param(*flags, marks=() if flags in ORDERS else pytest.mark.slow)
        for flags in itertools.product((False, True), repeat=3)
    ],
)
def test_either_order_of_axes_sorted_or_not(
    batch_first: bool, enforce_sorted: bool, trace: bool
) -> None:
    def turned(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return (x if batch_first else x.transpose(0, 1).contiguous()), lengths

    module = Packed(
        layer("LSTM", batch_first, bidirectional=True),
        batch_first,
        enforce_sorted,
        value=-2.5,
    )
    axes = DYNAMIC if batch_first else {0: {0: "t", 1: "n"}, 1: {0: "n"}}
    more = [turned(*sample(8, 8, 8)), turned(*sample(3, 1, 1, 1, steps=7))]
    check(
        module,
        *turned(*sample(5, 4, 2)),
        dynamic=axes,
        spans=BOTH,
        more=more,
        trace=trace,
        **CLOSE,
        compile=trace,
    )


@pytest.mark.parametrize("axes", [{0: {0: "n"}, 1: {0: "n"}}, {0: {1: "t"}}])
@pytest.mark.parametrize("trace", [False, True])
@pytest.mark.slow
def test_one_axis_dynamic(axes: Any, trace: bool) -> None:
    module = Packed(
        layer("GRU", bidirectional=True, num_layers=2), enforce_sorted=False
    )
    more = [sample(1, steps=5)] if 0 in axes[0] else [sample(1, 1, 1), sample(9, 2, 3)]
    check(
        module,
        *sample(2, 5, 3),
        dynamic=axes,
        more=more,
        trace=trace,
        **CLOSE,
        compile=False,
    )


@pytest.mark.parametrize("enforce_sorted", [False, True])
def test_given_states(enforce_sorted: bool) -> None:
    settings: dict[str, Any] = {"num_layers": 2, "bidirectional": True}
    (x, lengths), h, c = sample(4, 2, 1), torch.randn(4, 3, 6), torch.randn(4, 3, 6)
    axes = {**DYNAMIC, 2: {1: "n"}, 3: {1: "n"}}
    module = FromStates(layer("LSTM", **settings), enforce_sorted=enforce_sorted)
    check(module, x, lengths, h, c, dynamic=axes, **CLOSE, compile=False)
    for kind in ("GRU", "relu"):
        module = FromState(layer(kind, **settings), enforce_sorted=enforce_sorted)
        check(
            module,
            x,
            lengths,
            h,
            dynamic={i: axes[i] for i in range(3)},
            **CLOSE,
            compile=kind == "GRU",
        )


@pytest.mark.slow
def test_a_loop_of_many_steps() -> None:
    # a hundred steps of a contraction: the error stays that of a few steps
    check(Packed(layer("LSTM", bidirectional=True)), *sample(100, 37, 1), **CLOSE)


def test_half_precision() -> None:
    # sums of a dozen half products differ by 2^-10 each way and are fed on for a few steps
    module = Packed(layer("GRU", bidirectional=True).half())
    x, lengths = sample(5, 3, 1)
    check(module, x.half(), lengths, dynamic=DYNAMIC, rtol=1e-2, atol=1e-2)


def test_half_by_policy() -> None:
    module = torch.jit.script(Packed(layer("LSTM", bidirectional=True)).eval())
    x, lengths = sample(5, 3, 1)
    specs = [
        builder.TensorSpec("float32", tuple(x.shape)),
        builder.TensorSpec("int64", (3,)),
    ]
    conversion = builder.convert(module, specs, precision="fp16")
    got = builder.reference.run(conversion, [x, lengths])
    torch.testing.assert_close(
        got[0], module(x, lengths)[0], rtol=1e-2, atol=1e-2
    )  # as above


def test_int32_lengths() -> None:
    x, lengths = sample(4, 3, 1)
    check(
        Packed(layer("GRU")), x, lengths.int(), dynamic=DYNAMIC, **CLOSE, compile=False
    )


class OfAList(nn.Module):
    def forward(
        self, first: Tensor, second: Tensor, third: Tensor
    ) -> tuple[Tensor, Tensor]:
        return pad_packed_sequence(
            pack_sequence([first, second, third], enforce_sorted=False)
        )


def test_a_list_of_sequences() -> None:
    check(
        OfAList(),
        torch.randn(2, 3),
        torch.randn(4, 3),
        torch.randn(1, 3),
        trace=True,
        compile=False,
    )


class Padded(nn.Module):
    def __init__(self, batch_first: bool, value: float, side: str) -> None:
        super().__init__()
        self.batch_first, self.value, self.side = batch_first, value, side

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return pad_sequence([first, second], self.batch_first, self.value, self.side)


@pytest.mark.parametrize("axes", [None, {0: {0: "a"}}, {0: {0: "a"}, 1: {0: "b"}}])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_padding_a_list(batch_first: bool, side: str, axes: Any) -> None:
    def pair(a: int, b: int) -> tuple[Tensor, Tensor]:
        return torch.randn(a, 2), torch.randn(b, 2)

    more = [pair(1, 4), pair(6, 4)] if axes else []
    more += [pair(2, 1), pair(3, 3)] if axes and 1 in axes else []
    check(
        Padded(batch_first, -1.5, side),
        *pair(3, 4),
        dynamic=axes,
        more=more,
        compile=axes is not None,
    )


def test_padding_of_other_ranks_and_types() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        return pad_sequence([a, b], padding_value=3.0)

    for shape, dtype in (
        ((), torch.int64),
        ((2, 3), torch.float16),
        ((1,), torch.uint8),
    ):
        a, b = (torch.zeros(n, *shape).to(dtype) for n in (3, 5))
        check(function, a, b, dynamic={0: {0: "n"}}, compile=False)


def test_constant_lengths() -> None:
    lengths = torch.tensor([2, 5, 3])

    def function(x: Tensor) -> Any:
        packed = pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return pad_packed_sequence(packed, batch_first=True)

    check(function, sample(2, 5, 3, steps=7)[0], **CLOSE)


def test_values_beyond_the_lengths_are_not_read() -> None:
    module = torch.jit.script(
        Packed(layer("GRU", bidirectional=True, num_layers=2)).eval()
    )
    x, lengths = sample(4, 2, 1, steps=6)
    conversion = convert(module, (x, lengths), dynamic=DYNAMIC)
    x[torch.arange(6) >= lengths[:, None]] = float("nan")
    for got, wanted in zip(
        builder.reference.run(conversion, [x, lengths])[:2],
        module(x, lengths)[:2],
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, **CLOSE)


@pytest.mark.parametrize("lengths", [[0, 4, 4], [5, 4, -1]])
def test_invalid_length_reads_nothing_out_of_bounds(lengths: list[int]) -> None:
    x, good = sample(4, 3, 1)
    conversion = convert(
        Packed(layer("GRU", bidirectional=True)), (x, good), dynamic=DYNAMIC
    )
    got = builder.reference.run(conversion, [x, torch.tensor(lengths)])
    wanted = builder.reference.run(conversion, [x, torch.tensor(lengths).clamp(1, 4)])
    torch.testing.assert_close(got[:2], wanted[:2], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("total", [3, 4, 9])
def test_any_total_length(total: int) -> None:
    def function(x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(x, lengths)
        return pad_packed_sequence(packed, padding_value=7, total_length=total)

    x, lengths = torch.arange(8).reshape(4, 2), torch.tensor([3, 1])
    check(function, x, lengths, dynamic={0: {0: "t", 1: "n"}, 1: {0: "n"}}, spans=BOTH)


def test_packing_of_other_ranks_and_types() -> None:
    def function(x: Tensor, lengths: Tensor) -> Any:
        packed = pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return pad_packed_sequence(
            packed, batch_first=True, padding_value=1, total_length=x.size(1)
        )

    for x in (
        torch.randn(2, 4, 3, 2),
        torch.randn(2, 4) > 0,
        torch.randint(9, (2, 4), dtype=torch.int32),
    ):
        check(
            function,
            x,
            torch.tensor([2, 3]),
            dynamic=DYNAMIC,
            spans=BOTH,
            compile=False,
        )


# Without total_length


class ToTheLongest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(5, 6, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor, lengths: Tensor):  # type: ignore[no-untyped-def]
        packed = pack_padded_sequence(
            x, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        return pad_packed_sequence(self.rnn(packed)[0], batch_first=True)


@pytest.mark.parametrize("trace", [False, True])
def test_without_total_length_the_size_depends_on_the_data(
    monkeypatch: pytest.MonkeyPatch, trace: bool
) -> None:
    here = nonzero.available()
    monkeypatch.setattr(nonzero, "available", lambda: True)
    more = [sample(2, 2), sample(1, 4, steps=9)]
    x, lengths = sample(2, 4, 1, steps=6)
    check(
        ToTheLongest(),
        x,
        lengths,
        dynamic=DYNAMIC,
        spans=BOTH,
        more=more,
        trace=trace,
        compile=here,
        **CLOSE,
    )


@pytest.mark.parametrize("trace", [False, True])
def test_missing_total_length_is_refused_on_rtx(
    monkeypatch: pytest.MonkeyPatch, trace: bool
) -> None:
    monkeypatch.setattr(nonzero, "available", lambda: False)
    with pytest.raises(
        UnsupportedOperators, match=r"(?s)longest sequence.*total_length=x.size\(1\)"
    ):
        convert(ToTheLongest(), sample(2, 4, 1), dynamic=DYNAMIC, trace=trace)


# Other operators between


class Between(nn.Module):
    """Operators on each row of packed data, and a PackedSequence built of the result."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.GRU(5, 6), nn.GRU(4, 3)
        self.middle = nn.Sequential(
            nn.Linear(6, 4), nn.ReLU(), nn.LayerNorm(4), nn.Dropout()
        )

    def forward(self, x: Tensor, lengths: Tensor):  # type: ignore[no-untyped-def]
        packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
        packed, _ = self.first(packed)
        data = self.middle(packed.data)
        data = data + 2 * torch.tanh(data)
        again = PackedSequence(
            data, packed.batch_sizes, packed.sorted_indices, packed.unsorted_indices
        )
        again, h = self.second(again)
        return pad_packed_sequence(again, total_length=x.size(0))[0], h


@pytest.mark.slow
def test_operators_on_each_row_of_the_packed_data() -> None:
    x, lengths = torch.randn(4, 3, 5), torch.tensor([1, 4, 2])
    axes = {0: {0: "t", 1: "n"}, 1: {0: "n"}}
    check(Between(), x, lengths, dynamic=axes, spans=BOTH, trace=True, **CLOSE)


REFUSED = {
    "a sum over rows": lambda packed: packed.data.sum(0),
    "how many rows": lambda packed: packed.data * packed.data.size(0),
    "a later step's rows": lambda packed: packed.batch_sizes[1] + 1,
    "a tensor beside": lambda packed: packed.data + torch.ones(10, 1),
    "the packed data": lambda packed: packed.data,
    "the batch sizes": lambda packed: packed.batch_sizes,
}


@pytest.mark.parametrize("what", REFUSED)
def test_unsupported_reads_of_packed_data_are_refused(what: str) -> None:
    def function(x: Tensor, lengths: Tensor) -> Any:
        return REFUSED[what](pack_padded_sequence(x, lengths, batch_first=True))

    with pytest.raises(UnsupportedOperators, match=r"(?s)pack.*total_length"):
        convert(function, sample(5, 4, 1), dynamic=DYNAMIC)


class InABranch(nn.Module):
    """The data decide whether the packed sequence is read, or where it is created."""

    def __init__(self, outside: bool) -> None:
        super().__init__()
        self.rnn, self.outside = nn.GRU(5, 6, batch_first=True), outside

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        h = torch.zeros(1, x.size(0), 6)
        if bool(x.sum() > 0):
            h = self.rnn(
                packed
                if self.outside
                else pack_padded_sequence(x, lengths, batch_first=True)
            )[1]
        return h


def test_data_dependent_branch() -> None:
    x, lengths = sample(5, 4, 1)
    check(InABranch(outside=False), x, lengths, more=[(-x, lengths)], **CLOSE)
    with pytest.raises(UnsupportedOperators, match="reads a packed sequence"):
        convert(InABranch(outside=True), (x, lengths))


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(5, 6)

    def forward(self, packed: PackedSequence) -> Tensor:
        return self.rnn(packed)[1]


class Gives(Takes):
    def forward(self, x: Tensor, lengths: Tensor) -> PackedSequence:
        return self.rnn(pack_padded_sequence(x, lengths))[0]


@pytest.mark.parametrize("module", [Takes, Gives])
def test_a_packed_sequence_as_an_endpoint_is_refused(module: type[nn.Module]) -> None:
    with pytest.raises(
        TrtBuildError, match=r"(?s)PackedSequence.*p(ack|ad)_pa"
    ) as refused:
        builder.lower(torch.jit.script(module().eval()))
    assert not isinstance(refused.value, UnsupportedOperators)


# The tests can fail


def _turned_from_the_padding(self: Lengths, ctx: Any, x: Any) -> Any:
    return Extent().part(ctx, x, [0, 0], ctx.sizes(x), reverse=True)


def _at_the_padding(self: Lengths, ctx: Any, x: Any) -> Any:
    last = ctx.slice(
        x, [4] + [0] * (ctx.rank(x) - 1), [1, *ctx.sizes(x)[1:]], [1] * ctx.rank(x)
    )
    return ctx.squeeze(last, [0])


BROKEN: dict[str, tuple[str, Any]] = {
    "the second direction begins at the padding": (
        "reversed_in_time",
        _turned_from_the_padding,
    ),
    "final states are those of the last step": ("ends", _at_the_padding),
    "a row lasts one step more": (
        "_steps",
        property(lambda self: self.ctx.constant(torch.arange(-1, 4)[:, None])),
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_converter_is_detected(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, inputs = Packed(layer("LSTM", bidirectional=True)), sample(4, 3, 1, steps=5)
    check(module, *inputs, **CLOSE, compile=False)
    monkeypatch.setattr(Lengths, *BROKEN[what])
    with pytest.raises(AssertionError, match="not close"):
        check(module, *inputs, **CLOSE, compile=False)
