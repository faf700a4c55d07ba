"""One step of a recurrent layer: LSTM, GRU and plain RNN, with the weights of one direction or of
both at once.
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
from builder.conversion.values import Tensor
from builder.engine import ITensor, trt


@dataclass(frozen=True)
class Weights:
    """The weights of one direction of one layer: rows of w_ih and w_hh are gates; w_hr projects the
    state of an LSTM. For two directions together the state's weights have a leading axis of 2, and
    w_ih has the rows of the second direction below those of the first.
    """

    w_ih: Any
    w_hh: Any
    b_ih: Any = None
    b_hh: Any = None
    w_hr: Any = None

    @property
    def gate(self) -> int:
        """The width of one gate of a cell with `gates` gates, equal to the width of the cell
        state.
        """
        return int(self.w_hh.shape[-2])


def weights_of(
    params: Sequence[Tensor], biases: bool, layers: int, bidirectional: bool
) -> list[list[Weights]]:
    """PyTorch's flat list as [layer][direction]. Additional tensors per direction are
    projections.
    """
    directions = 2 if bidirectional else 1
    tensors_per_direction = len(params) // (layers * directions)
    groups = [
        list(params[i : i + tensors_per_direction])
        for i in range(0, len(params), tensors_per_direction)
    ]
    weights = [_weights_of(group, biases) for group in groups]
    return [weights[i : i + directions] for i in range(0, len(weights), directions)]


def _weights_of(group: list[Tensor], biases: bool) -> Weights:
    projection = None
    if len(group) % 2:
        projection = group[-1]
    b_ih, b_hh = group[2:4] if biases else (None, None)
    return Weights(group[0], group[1], b_ih, b_hh, projection)


def together(directions: list[Weights]) -> Weights | None:
    """The weights of both directions of a layer as one; None if some are known only at run time."""
    pairs = {
        name: tuple(getattr(direction, name) for direction in directions)
        for name in vars(directions[0])
    }
    for pair in pairs.values():
        if not all(
            weight is None or isinstance(weight, torch.Tensor) for weight in pair
        ):
            return None
    joined: dict[str, Any] = dict.fromkeys(pairs)
    for name, pair in pairs.items():
        if pair[0] is not None:
            joined[name] = torch.stack(pair)
    for name in ("w_ih", "b_ih"):
        if joined[name] is not None:
            joined[name] = joined[name].flatten(0, 1)
    if joined["b_hh"] is not None:
        joined["b_hh"] = joined["b_hh"].unsqueeze(1)  # to add to [2, batch, gates]
    return Weights(**joined)


State = tuple[ITensor, ...]
"""(h,) or (h, c), each [batch, width], or [2, batch, width] for two directions."""


class Cell:
    """One step: `inputs` [batch, gates * width] is the input's part of the gates, `state` the state
    after the previous step. Both have a leading axis of 2 if two directions are computed together.
    """

    gates = 1
    splits: tuple[int, ...] = ()
    """Number of gates in one slice."""

    def __init__(self, ctx: ConversionContext, weights: Weights, batch: Size) -> None:
        self.ctx = ctx
        self.weights = weights
        self.width = weights.gate // self.gates
        self.lead: list[Size] = [2, batch] if ctx.rank(weights.w_hh) == 3 else [batch]
        self.shape: dict[int, Any] = {}
        # created here, so that a loop body computes no shapes
        if isinstance(batch, DynamicScalar):
            for count in self.splits:
                self.shape[count] = ctx.shape_tensor([*self.lead, count * self.width])

    def project(self, x: ITensor) -> ITensor:
        """The input's part of the gates: x @ w_ih^T + bias, for one step or a whole sequence."""
        bias = self.input_bias()
        gates = matmul(self.ctx, x, self.weights.w_ih, transpose_b=True)
        if bias is None:
            return gates
        return add(self.ctx, gates, bias)

    def input_bias(self) -> Any:
        """The sum of both biases, if the state's part is always added to the input's."""
        b_ih = self.weights.b_ih
        b_hh = self.weights.b_hh
        if b_ih is None or b_hh is None:
            return b_hh if b_ih is None else b_ih
        if isinstance(b_ih, torch.Tensor) and isinstance(b_hh, torch.Tensor):
            return b_ih + b_hh.reshape(b_ih.shape)
        return add(self.ctx, b_ih, b_hh)

    def recur(self, h: ITensor) -> ITensor:
        """The state's part of the gates."""
        return matmul(self.ctx, h, self.weights.w_hh, transpose_b=True)

    def gate_slice(self, x: ITensor, first: int, count: int = 1) -> ITensor:
        """Gates `first` to `first + count` of [..., gates * width]."""
        sizes = [*self.lead, count * self.width]
        start = [0] * len(self.lead) + [first * self.width]
        static = [0 if isinstance(size, DynamicScalar) else size for size in sizes]
        layer = self.ctx.net.add_slice(
            x, trt.Dims(start), trt.Dims(static), trt.Dims([1] * len(sizes))
        )
        if self.shape:
            layer.set_input(2, self.shape[count])
        return self.ctx.set_sizes(layer.get_output(0), sizes)

    def product(self, a: ITensor, b: ITensor) -> ITensor:
        return self.ctx.elementwise("PROD", a, b)

    def step(self, inputs: Any, state: State) -> State:
        """The next state."""
        raise NotImplementedError


class Tanh(Cell):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh)"""

    activation = "TANH"

    def step(self, inputs: ITensor, state: State) -> State:
        return (
            activate(
                self.ctx, add(self.ctx, inputs, self.recur(state[0])), self.activation
            ),
        )


class Relu(Tanh):
    """h' = relu(W_ih x + b_ih + W_hh h + b_hh)"""

    activation = "RELU"


class LSTM(Cell):
    """i, f, g, o = gates; c' = sigmoid(f) c + sigmoid(i) tanh(g); h' = sigmoid(o) tanh(c'), then
    projected
    """

    gates = 4
    splits = (1,)

    def step(self, inputs: ITensor, state: State) -> State:
        h, c = state
        gates = add(self.ctx, inputs, self.recur(h))
        # of g too: one layer less than one for each
        open_ = activate(self.ctx, gates, "SIGMOID")
        i = self.gate_slice(open_, 0)
        f = self.gate_slice(open_, 1)
        o = self.gate_slice(open_, 3)
        g = activate(self.ctx, self.gate_slice(gates, 2), "TANH")
        c = self.ctx.elementwise("SUM", self.product(f, c), self.product(i, g))
        h = self.product(o, activate(self.ctx, c, "TANH"))
        if self.weights.w_hr is not None:
            h = matmul(self.ctx, h, self.weights.w_hr, transpose_b=True)
        return h, c


class GRU(Cell):
    """r, z = sigmoid(gates); n = tanh(W_in x + b_in + r (W_hn h + b_hn)); h' = n + z (h - n)"""

    gates = 3
    splits = (1, 2)

    def input_bias(self) -> Any:
        return self.weights.b_ih

    def recur(self, h: ITensor) -> ITensor:
        gates = super().recur(h)
        if self.weights.b_hh is None:
            return gates
        return add(self.ctx, gates, self.weights.b_hh)

    def step(self, inputs: ITensor, state: State) -> State:
        (h,) = state
        recurrent = self.recur(h)
        sums = add(
            self.ctx, self.gate_slice(inputs, 0, 2), self.gate_slice(recurrent, 0, 2)
        )
        open_ = activate(self.ctx, sums, "SIGMOID")
        r = self.gate_slice(open_, 0)
        z = self.gate_slice(open_, 1)
        n = add(
            self.ctx,
            self.gate_slice(inputs, 2),
            self.product(r, self.gate_slice(recurrent, 2)),
        )
        n = activate(self.ctx, n, "TANH")
        return (add(self.ctx, n, self.product(z, self.ctx.elementwise("SUB", h, n))),)
