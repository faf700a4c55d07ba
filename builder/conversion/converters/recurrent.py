"""Recurrent layers and cells: LSTM, GRU and plain RNN.

The input's part of every gate is one matrix product over the whole sequence. The steps are written out where the
sequence is static and short, and are an ILoop otherwise. Both directions of a layer take their steps together: the
sequence of the second is turned round, and the products are batched.
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
    """One direction of one layer: rows of w_ih and w_hh are gates; w_hr projects the state of an LSTM. For two
    directions at once the state's weights have a leading axis of two, and w_ih the second one's rows below."""

    w_ih: Any
    w_hh: Any
    b_ih: Any = None
    b_hh: Any = None
    w_hr: Any = None

    @property
    def gate(self) -> int:
        """The width of one gate, for a cell of `gates` of them: that of the cell state."""
        return int(self.w_hh.shape[-2])


State = tuple[Any, ...]
"""(h,) or (h, c), each [batch, width], or [2, batch, width] for two directions."""


class Cell:
    """One step: `inputs` [batch, gates * width] is the input's part of the gates, `state` what the last step left; both
    with an axis of two in front where two directions take their steps together."""

    gates = 1
    cuts: tuple[int, ...] = ()
    """How many gates are cut out of their tensor at once."""

    def __init__(self, ctx: ConversionContext, weights: Weights, batch: Size) -> None:
        self.ctx, self.weights = ctx, weights
        self.width = weights.gate // self.gates
        self.lead: list[Size] = [2, batch] if ctx.rank(weights.w_hh) == 3 else [batch]
        self.shape: dict[int, Any] = {}
        if isinstance(batch, DynamicScalar):  # made here, so that a loop's body need not compute shapes
            for count in self.cuts:
                self.shape[count] = ctx.shape_tensor([*self.lead, count * self.width])

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
            return b_ih + b_hh.reshape(b_ih.shape)
        return add(self.ctx, b_ih, b_hh)

    def recur(self, h: Any) -> Any:
        """The state's part of the gates."""
        return matmul(self.ctx, h, self.weights.w_hh, transpose_b=True)

    def cut(self, x: Any, first: int, count: int = 1) -> Any:
        """Gates `first` to `first + count` of [..., gates * width]."""
        sizes = [*self.lead, count * self.width]
        start = [0] * len(self.lead) + [first * self.width]
        static = [0 if isinstance(size, DynamicScalar) else size for size in sizes]
        layer = self.ctx.net.add_slice(x, trt.Dims(start), trt.Dims(static), trt.Dims([1] * len(sizes)))
        if self.shape:
            layer.set_input(2, self.shape[count])
        return self.ctx.set_sizes(layer.get_output(0), sizes)

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
    cuts = (1,)

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
    cuts = (1, 2)

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


def _reads_states(node: Any) -> bool:
    """Whether anything reads the final states: what nobody reads is not computed."""
    return any(value.uses() for value in list(node.outputs())[1:])


def _packed(ctx: ConversionContext, call: Any) -> str:
    return "a packed sequence has as many rows in each step as the data says, which no network's shapes can follow"


@converter(f"aten::lstm.input(Tensor input, Tensor[] hx, {_FLAGS} -> (Tensor, Tensor, Tensor)", constants=_CONSTANTS,
           when=_dropout)  # fmt: skip
def lstm(
    ctx: ConversionContext, node: Any, x: Any, hx: Any, params: Any, biases: bool, layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """torch.nn.LSTM: stacked, in both directions, from any initial state, with projections"""
    stacked = weights_of(params, biases, layers, bidirectional)
    return sequence(ctx, LSTM, x, tuple(hx), stacked, batch_first, _reads_states(node))


def _register_sequence(name: str, kind: type[Cell]) -> None:
    @converter(f"aten::{name}.input(Tensor input, Tensor hx, {_FLAGS} -> (Tensor, Tensor)", constants=_CONSTANTS,
               when=_dropout)  # fmt: skip
    def layer(
        ctx: ConversionContext, node: Any, x: Any, hx: Any, params: Any, biases: bool, layers: int, dropout: float,
        train: bool, bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        stacked = weights_of(params, biases, layers, bidirectional)
        return sequence(ctx, kind, x, (hx,), stacked, batch_first, _reads_states(node))

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
    ctx: ConversionContext, kind: type[Cell], x: Any, initial: State, weights: list[list[Weights]], batch_first: bool,
    states: bool = True,
) -> tuple[Any, ...]:  # fmt: skip
    """(output, final states...) of stacked layers; x is [time, batch, features], or batch first. Without `states` the
    final states are None."""
    x = ctx.permute(x, [1, 0, 2]) if batch_first else x
    finals: list[State] = []
    for layer, directions in enumerate(weights):
        outputs = []
        first = layer * len(directions)
        if len(directions) == 2 and (both := together(directions)):
            start = tuple(_rows(ctx, s, first, 2) for s in initial)
            x, final = two_directions(ctx, kind, x, start, both, states)
            finals.append(final)
            continue
        for reverse, weight in enumerate(directions):
            start = tuple(pick(ctx, s, first + reverse) for s in initial)
            output, final = direction(ctx, kind, x, start, weight, bool(reverse), states)
            outputs.append(output)
            finals.append(tuple(ctx.unsqueeze(s, [0]) for s in final))
        x = outputs[0] if len(outputs) == 1 else ctx.concatenate(outputs, 2)
    x = ctx.permute(x, [1, 0, 2]) if batch_first else x
    last = [_joined(ctx, parts) for parts in zip(*finals, strict=True)] if states else [None] * len(initial)
    return x, *last


def together(directions: list[Weights]) -> Weights | None:
    """The weights of both directions of a layer as one; None where some are only known to the engine."""
    pairs = {name: tuple(getattr(d, name) for d in directions) for name in vars(directions[0])}
    if not all(t is None or isinstance(t, torch.Tensor) for pair in pairs.values() for t in pair):
        return None
    joined: dict[str, Any] = {name: None if pair[0] is None else torch.stack(pair) for name, pair in pairs.items()}
    for name in ("w_ih", "b_ih"):
        joined[name] = None if joined[name] is None else joined[name].flatten(0, 1)
    if joined["b_hh"] is not None:
        joined["b_hh"] = joined["b_hh"].unsqueeze(1)  # to add to [2, batch, gates]
    return Weights(**joined)


def two_directions(
    ctx: ConversionContext, kind: type[Cell], x: Any, start: State, weights: Weights, states: bool
) -> tuple[Any, State]:
    """Both directions of a layer: [time, batch, 2 * width] and the final states [2, batch, width]."""
    cell = kind(ctx, weights, ctx.size(x, 1))
    steps, batch = ctx.size(x, 0), ctx.size(x, 1)
    gates = cell.project(x)
    sizes = [steps, batch, weights.gate]
    halves = [_along_time(ctx, gates, [0, i * weights.gate], sizes, i) for i in range(2)]
    inputs = ctx.concatenate([ctx.unsqueeze(half, [1]) for half in halves], 1)
    output, final = steps_of(ctx, cell, inputs, start, steps, False, states)
    sizes = [steps, 1, batch, output.shape[-1]]
    both = [ctx.squeeze(_along_time(ctx, output, [i, 0, 0], sizes, i), [1]) for i in range(2)]
    return ctx.concatenate(both, 2), final


def _along_time(ctx: ConversionContext, x: Any, start: list[Size], sizes: list[Size], back: int) -> Any:
    """A part of x, `start` saying where on the axes after time; from the last step to the first where `back`."""
    first = ctx.arithmetic("sub", sizes[0], 1) if back else 0
    return ctx.slice(x, [first, *start], sizes, [-1 if back else 1] + [1] * len(start))


def _rows(ctx: ConversionContext, x: Any, first: int, count: int) -> Any:
    """x[first : first + count]"""
    if isinstance(x, torch.Tensor):
        return ctx.constant(x[first : first + count])
    if x.shape[0] == count:
        return x
    sizes = [count, *ctx.sizes(x)[1:]]
    return ctx.slice(x, [first, 0, 0], sizes, [1, 1, 1])


def _joined(ctx: ConversionContext, parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else ctx.concatenate(parts, 0)


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
    ctx: ConversionContext, kind: type[Cell], x: Any, start: State, weights: Weights, reverse: bool, states: bool
) -> tuple[Any, State]:
    """One direction of one layer: [time, batch, width] and the final state."""
    cell = kind(ctx, weights, ctx.size(x, 1))
    return steps_of(ctx, cell, cell.project(x), start, ctx.size(x, 0), reverse, states)


def steps_of(
    ctx: ConversionContext, cell: Cell, inputs: Any, start: State, steps: Size, reverse: bool, states: bool
) -> tuple[Any, State]:
    """All steps over `inputs` [time, ...]: the state h after each, and the final state (empty without `states`)."""
    if isinstance(steps, int) and 0 < steps <= min(WRITTEN_OUT, ctx.unroll_limit):
        return unrolled(ctx, cell, inputs, start, steps, reverse)
    return looped(ctx, cell, inputs, start, steps, reverse, states)


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
    ctx: ConversionContext, cell: Cell, inputs: Any, start: State, steps: Size, reverse: bool, states: bool
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
    if not states:
        return output, ()
    lasts = (loop.add_loop_output(s, trt.LoopOutput.LAST_VALUE, 0).get_output(0) for s in state)
    return output, tuple(ctx.copy_sizes(s, last) for s, last in zip(start, lasts, strict=True))


def scalar_tensor(ctx: ConversionContext, size: Size) -> Any:
    """A size as a 0-d tensor, which trip limits are."""
    if isinstance(size, int):
        return ctx.constant(torch.tensor(size, dtype=torch.int32))
    return ctx.reshape(size.tensor, [])
