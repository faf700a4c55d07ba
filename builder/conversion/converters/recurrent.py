"""Recurrent layers and cells: LSTM, GRU and plain RNN.

The input's part of every gate is one matrix product over the whole sequence. The steps are written out where the
sequence is static and short, and are an ILoop otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.converters.linear import add, matmul
from builder.conversion.dynamic import DynamicScalar, Size
from builder.conversion.layers import activate
from builder.conversion.registry import converter
from builder.engine.flavour import trt

WRITTEN_OUT = 16
"""The longest sequence whose steps are written out, if the unroll limit allows: an LSTM of two layers in both
directions over 64 steps is 3,949 layers and compiles in 19 s, as a loop 126 layers in 0.4 s (RTX 1.7, two cores)."""


@dataclass(frozen=True)
class Weights:
    """One direction of one layer: rows of w_ih and w_hh are gates; w_hr projects the state of an LSTM."""

    w_ih: Any
    w_hh: Any
    b_ih: Any = None
    b_hh: Any = None
    w_hr: Any = None

    @property
    def gate(self) -> int:
        """The width of one gate, for a cell of `gates` of them: that of the cell state."""
        return int(self.w_hh.shape[0])


State = tuple[Any, ...]
"""(h,) or (h, c), each [batch, width]."""


class Cell:
    """One step: `inputs` [batch, gates * width] is the input's part of the gates, `state` what the last step left."""

    gates = 1

    def __init__(self, ctx: ConversionContext, weights: Weights, batch: Size) -> None:
        self.ctx, self.weights = ctx, weights
        self.width = weights.gate // self.gates
        self.batch = batch
        self.shape: dict[int, Any] = {}
        if isinstance(batch, DynamicScalar):  # made here, so that a loop's body need not compute shapes
            for count in (1, 2):
                self.shape[count] = ctx.shape_tensor([batch, count * self.width])

    def project(self, x: Any) -> Any:
        """The input's part of the gates: x @ w_ih^T + bias, for one step or a whole sequence."""
        bias = self.input_bias()
        gates = matmul(self.ctx, x, self.weights.w_ih, transpose_b=True)
        return gates if bias is None else add(self.ctx, gates, bias)

    def input_bias(self) -> Any:
        """Both biases at once, where the state's part is only ever added to the input's."""
        b_ih, b_hh = self.weights.b_ih, self.weights.b_hh
        if b_ih is None or b_hh is None:
            return b_hh if b_ih is None else b_ih
        if isinstance(b_ih, torch.Tensor) and isinstance(b_hh, torch.Tensor):
            return b_ih + b_hh
        return add(self.ctx, b_ih, b_hh)

    def recur(self, h: Any) -> Any:
        """The state's part of the gates."""
        return matmul(self.ctx, h, self.weights.w_hh, transpose_b=True)

    def cut(self, x: Any, first: int, count: int = 1) -> Any:
        """Gates `first` to `first + count` of [batch, gates * width]."""
        batch = 0 if isinstance(self.batch, DynamicScalar) else self.batch
        layer = self.ctx.net.add_slice(x, (0, first * self.width), (batch, count * self.width), (1, 1))
        if self.shape:
            layer.set_input(2, self.shape[count])
        return self.ctx.set_sizes(layer.get_output(0), [self.batch, count * self.width])

    def product(self, a: Any, b: Any) -> Any:
        return self.ctx.elementwise("PROD", a, b)

    def step(self, inputs: Any, state: State) -> State:
        """The next state."""
        raise NotImplementedError


class Tanh(Cell):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh)"""

    activation = "TANH"

    def step(self, inputs: Any, state: State) -> State:
        return (activate(self.ctx, add(self.ctx, inputs, self.recur(state[0])), self.activation),)


class Relu(Tanh):
    """h' = relu(W_ih x + b_ih + W_hh h + b_hh)"""

    activation = "RELU"


class LSTM(Cell):
    """i, f, g, o = gates; c' = sigmoid(f) c + sigmoid(i) tanh(g); h' = sigmoid(o) tanh(c'), then projected"""

    gates = 4

    def step(self, inputs: Any, state: State) -> State:
        h, c = state
        gates = add(self.ctx, inputs, self.recur(h))
        open_ = activate(self.ctx, gates, "SIGMOID")  # of g too: one layer less than one for each
        i, f, o = (self.cut(open_, k) for k in (0, 1, 3))
        g = activate(self.ctx, self.cut(gates, 2), "TANH")
        c = self.ctx.elementwise("SUM", self.product(f, c), self.product(i, g))
        h = self.product(o, activate(self.ctx, c, "TANH"))
        return (h if self.weights.w_hr is None else matmul(self.ctx, h, self.weights.w_hr, transpose_b=True)), c


class GRU(Cell):
    """r, z = sigmoid(gates); n = tanh(W_in x + b_in + r (W_hn h + b_hn)); h' = n + z (h - n)"""

    gates = 3

    def input_bias(self) -> Any:
        return self.weights.b_ih

    def recur(self, h: Any) -> Any:
        gates = super().recur(h)
        return gates if self.weights.b_hh is None else add(self.ctx, gates, self.weights.b_hh)

    def step(self, inputs: Any, state: State) -> State:
        (h,) = state
        recurrent = self.recur(h)
        sums = add(self.ctx, self.cut(inputs, 0, 2), self.cut(recurrent, 0, 2))
        open_ = activate(self.ctx, sums, "SIGMOID")
        r, z = self.cut(open_, 0), self.cut(open_, 1)
        n = add(self.ctx, self.cut(inputs, 2), self.product(r, self.cut(recurrent, 2)))
        n = activate(self.ctx, n, "TANH")
        return (add(self.ctx, n, self.product(z, self.ctx.elementwise("SUB", h, n))),)


# Single cells

_CELL = "Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) ->"
_CONSTANTS = ("w_ih", "w_hh", "b_ih", "b_hh", "params")


def single(ctx: ConversionContext, kind: type[Cell], x: Any, state: State, *weights: Any) -> State:
    """One step of a cell on its own; without a batch axis one is lent to it."""
    unbatched = ctx.rank(x) == 1
    if unbatched:
        x, state = ctx.unsqueeze(x, [0]), tuple(ctx.unsqueeze(s, [0]) for s in state)
    cell = kind(ctx, Weights(*weights), ctx.size(x, 0))
    state = cell.step(cell.project(x), state)
    return tuple(ctx.squeeze(s, [0]) for s in state) if unbatched else state


@converter(f"aten::lstm_cell(Tensor input, Tensor[] hx, {_CELL} (Tensor, Tensor)", constants=_CONSTANTS)
def lstm_cell(ctx: ConversionContext, node: Any, x: Any, hx: Any, *weights: Any) -> Any:
    """torch.nn.LSTMCell"""
    return single(ctx, LSTM, x, tuple(hx), *weights)


def _register_cell(name: str, kind: type[Cell]) -> None:
    @converter(f"aten::{name}(Tensor input, Tensor hx, {_CELL} Tensor", constants=_CONSTANTS)
    def cell(ctx: ConversionContext, node: Any, x: Any, hx: Any, *weights: Any) -> Any:
        return single(ctx, kind, x, (hx,), *weights)[0]


for _name, _kind in {"gru_cell": GRU, "rnn_tanh_cell": Tanh, "rnn_relu_cell": Relu}.items():
    _register_cell(_name, _kind)


# Whole sequences

_FLAGS = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first)"
)
_PACKED = (
    "Tensor data, Tensor batch_sizes, {}, Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, "
    "bool bidirectional)"
)


def _dropout(ctx: ConversionContext, call: Any) -> str | None:
    return "dropout in training draws random numbers" if call.train and call.dropout > 0 else None


def _packed(ctx: ConversionContext, call: Any) -> str:
    return "a packed sequence has as many rows in each step as the data says, which no network's shapes can follow"


@converter(f"aten::lstm.input(Tensor input, Tensor[] hx, {_FLAGS} -> (Tensor, Tensor, Tensor)", constants=_CONSTANTS,
           when=_dropout)  # fmt: skip
def lstm(
    ctx: ConversionContext, node: Any, x: Any, hx: Any, params: Any, biases: bool, layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """torch.nn.LSTM: stacked, in both directions, from any initial state, with projections"""
    return sequence(ctx, LSTM, x, tuple(hx), weights_of(params, biases, layers, bidirectional), batch_first)


def _register_sequence(name: str, kind: type[Cell]) -> None:
    @converter(f"aten::{name}.input(Tensor input, Tensor hx, {_FLAGS} -> (Tensor, Tensor)", constants=_CONSTANTS,
               when=_dropout)  # fmt: skip
    def layer(
        ctx: ConversionContext, node: Any, x: Any, hx: Any, params: Any, biases: bool, layers: int, dropout: float,
        train: bool, bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        return sequence(ctx, kind, x, (hx,), weights_of(params, biases, layers, bidirectional), batch_first)

    @converter(f"aten::{name}.data({_PACKED.format('Tensor hx')} -> (Tensor, Tensor)", when=_packed)
    def packed(ctx: ConversionContext, node: Any, *_: Any) -> Any: ...


for _name, _kind in {"gru": GRU, "rnn_tanh": Tanh, "rnn_relu": Relu}.items():
    _register_sequence(_name, _kind)


@converter(
    "aten::_pack_padded_sequence(Tensor input, Tensor lengths, bool batch_first) -> (Tensor, Tensor)",
    "aten::_pad_packed_sequence(Tensor data, Tensor batch_sizes, bool batch_first, Scalar padding_value, "
    "int total_length) -> (Tensor, Tensor)",
    when=_packed,
)
def packing(ctx: ConversionContext, node: Any, *_: Any) -> Any:
    """Always refused"""


@converter(f"aten::lstm.data({_PACKED.format('Tensor[] hx')} -> (Tensor, Tensor, Tensor)", when=_packed)
def packed_lstm(ctx: ConversionContext, node: Any, *_: Any) -> Any:
    """Always refused"""


def weights_of(params: Sequence[Any], biases: bool, layers: int, bidirectional: bool) -> list[list[Weights]]:
    """PyTorch's flat list as [layer][direction]; what is left over by the count of directions are projections."""
    directions = 2 if bidirectional else 1
    each = len(params) // (layers * directions)
    groups = [list(params[i : i + each]) for i in range(0, len(params), each)]
    made = [_one(group, biases) for group in groups]
    return [made[i : i + directions] for i in range(0, len(made), directions)]


def _one(group: list[Any], biases: bool) -> Weights:
    projection = group[-1] if len(group) % 2 else None
    b_ih, b_hh = group[2:4] if biases else (None, None)
    return Weights(group[0], group[1], b_ih, b_hh, projection)


def sequence(
    ctx: ConversionContext, kind: type[Cell], x: Any, initial: State, weights: list[list[Weights]], batch_first: bool
) -> tuple[Any, ...]:
    """(output, final states...) of stacked layers; x is [time, batch, features], or batch first."""
    x = ctx.permute(x, [1, 0, 2]) if batch_first else x
    finals: list[State] = []
    for layer, directions in enumerate(weights):
        outputs = []
        for reverse, weight in enumerate(directions):
            start = tuple(pick(ctx, s, layer * len(directions) + reverse) for s in initial)
            output, final = direction(ctx, kind, x, start, weight, bool(reverse))
            outputs.append(output)
            finals.append(final)
        x = outputs[0] if len(outputs) == 1 else ctx.concatenate(outputs, 2)
    x = ctx.permute(x, [1, 0, 2]) if batch_first else x
    return x, *(stack(ctx, parts) for parts in zip(*finals, strict=True))


def pick(ctx: ConversionContext, x: Any, index: int) -> Any:
    """x[index]"""
    if isinstance(x, torch.Tensor):
        return ctx.constant(x[index])
    if x.shape[0] == 1:
        return ctx.squeeze(x, [0])
    place = ctx.constant(torch.tensor(index, dtype=torch.int32))
    return ctx.set_sizes(ctx.net.add_gather(x, place, 0).get_output(0), ctx._exprs(x)[1:])


def stack(ctx: ConversionContext, parts: Sequence[Any]) -> Any:
    """The tensors along a new first axis."""
    rows = [ctx.unsqueeze(part, [0]) for part in parts]
    return rows[0] if len(rows) == 1 else ctx.concatenate(rows, 0)


def direction(
    ctx: ConversionContext, kind: type[Cell], x: Any, start: State, weights: Weights, reverse: bool
) -> tuple[Any, State]:
    """One direction of one layer: [time, batch, width] and the final state."""
    cell = kind(ctx, weights, ctx.size(x, 1))
    inputs = cell.project(x)
    steps = ctx.size(x, 0)
    if isinstance(steps, int) and 0 < steps <= min(WRITTEN_OUT, ctx.unroll_limit):
        return unrolled(ctx, cell, inputs, start, steps, reverse)
    return looped(ctx, cell, inputs, start, steps, reverse)


def unrolled(
    ctx: ConversionContext, cell: Cell, inputs: Any, state: State, steps: int, reverse: bool
) -> tuple[Any, State]:
    """Every step written out."""
    outputs = []
    for step in reversed(range(steps)) if reverse else range(steps):
        state = cell.step(pick(ctx, inputs, step), state)
        outputs.append(state[0])
    return stack(ctx, outputs[::-1] if reverse else outputs), state


def looped(
    ctx: ConversionContext, cell: Cell, inputs: Any, start: State, steps: Size, reverse: bool
) -> tuple[Any, State]:
    """An ILoop: an iterator over the gates' inputs, recurrences for the state, outputs concatenated."""
    loop = ctx.net.add_loop()
    count = scalar_tensor(ctx, steps)
    loop.add_trip_limit(count, trt.TripLimit.COUNT)
    recurrences = [loop.add_recurrence(s) for s in start]
    state = tuple(ctx.copy_sizes(s, r.get_output(0)) for s, r in zip(start, recurrences, strict=True))
    item = loop.add_iterator(inputs, 0, reverse).get_output(0)
    following = cell.step(ctx.set_sizes(item, ctx._exprs(inputs)[1:]), state)
    for recurrence, value in zip(recurrences, following, strict=True):
        recurrence.set_input(1, value)
    gather = loop.add_loop_output(following[0], trt.LoopOutput.REVERSE if reverse else trt.LoopOutput.CONCATENATE, 0)
    gather.set_input(1, count)
    output = ctx.set_sizes(gather.get_output(0), [steps, *ctx._exprs(following[0])])
    lasts = (loop.add_loop_output(s, trt.LoopOutput.LAST_VALUE, 0).get_output(0) for s in state)
    return output, tuple(ctx.copy_sizes(s, last) for s, last in zip(start, lasts, strict=True))


def scalar_tensor(ctx: ConversionContext, size: Size) -> Any:
    """A size as a 0-d tensor, which trip limits are."""
    if isinstance(size, int):
        return ctx.constant(torch.tensor(size, dtype=torch.int32))
    return ctx.reshape(size.tensor, [])
