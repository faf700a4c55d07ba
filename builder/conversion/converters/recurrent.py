"""Recurrent layers and cells: LSTM, GRU and plain RNN."""

from __future__ import annotations

from typing import Any

from builder.conversion.context import ConversionContext
from builder.conversion.converters.cells import GRU, LSTM, Cell, Relu, State, Tanh, Weights, weights_of
from builder.conversion.converters.sequences import sequence
from builder.conversion.registry import converter

# Single cells

_CELL = "Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) ->"
CONSTANTS = ("w_ih", "w_hh", "b_ih", "b_hh", "params")


def single(ctx: ConversionContext, kind: type[Cell], x: Any, state: State, *weights: Any) -> State:
    """One step of a cell on its own; without a batch axis one is lent to it."""
    unbatched = ctx.rank(x) == 1
    if unbatched:
        x, state = ctx.unsqueeze(x, [0]), tuple(ctx.unsqueeze(s, [0]) for s in state)
    cell = kind(ctx, Weights(*weights), ctx.size(x, 0))
    state = cell.step(cell.project(x), state)
    return tuple(ctx.squeeze(s, [0]) for s in state) if unbatched else state


@converter(f"aten::lstm_cell(Tensor input, Tensor[] hx, {_CELL} (Tensor, Tensor)", constants=CONSTANTS)
def lstm_cell(ctx: ConversionContext, node: Any, x: Any, hx: Any, *weights: Any) -> Any:
    """torch.nn.LSTMCell"""
    return single(ctx, LSTM, x, tuple(hx), *weights)


def _register_cell(name: str, kind: type[Cell]) -> None:
    @converter(f"aten::{name}(Tensor input, Tensor hx, {_CELL} Tensor", constants=CONSTANTS)
    def cell(ctx: ConversionContext, node: Any, x: Any, hx: Any, *weights: Any) -> Any:
        return single(ctx, kind, x, (hx,), *weights)[0]


for _name, _kind in {"gru_cell": GRU, "rnn_tanh_cell": Tanh, "rnn_relu_cell": Relu}.items():
    _register_cell(_name, _kind)


# Whole sequences

_FLAGS = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, bool bidirectional, bool batch_first)"
)


def dropout_in_training(ctx: ConversionContext, call: Any) -> str | None:
    """no dropout in training"""
    return "dropout in training draws random numbers" if call.train and call.dropout > 0 else None


def reads_states(node: Any) -> bool:
    """Whether anything reads the final states: what nobody reads is not computed."""
    return any(value.uses() for value in list(node.outputs())[1:])


@converter(f"aten::lstm.input(Tensor input, Tensor[] hx, {_FLAGS} -> (Tensor, Tensor, Tensor)", constants=CONSTANTS,
           when=dropout_in_training)  # fmt: skip
def lstm(
    ctx: ConversionContext, node: Any, x: Any, hx: Any, params: Any, biases: bool, layers: int, dropout: float,
    train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    """torch.nn.LSTM: stacked, in both directions, from any initial state, with projections"""
    stacked = weights_of(params, biases, layers, bidirectional)
    return sequence(ctx, LSTM, x, tuple(hx), stacked, batch_first, reads_states(node))


def _register_sequence(name: str, kind: type[Cell]) -> None:
    @converter(f"aten::{name}.input(Tensor input, Tensor hx, {_FLAGS} -> (Tensor, Tensor)", constants=CONSTANTS,
               when=dropout_in_training)  # fmt: skip
    def layer(
        ctx: ConversionContext, node: Any, x: Any, hx: Any, params: Any, biases: bool, layers: int, dropout: float,
        train: bool, bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        stacked = weights_of(params, biases, layers, bidirectional)
        return sequence(ctx, kind, x, (hx,), stacked, batch_first, reads_states(node))


for _name, _kind in {"gru": GRU, "rnn_tanh": Tanh, "rnn_relu": Relu}.items():
    _register_sequence(_name, _kind)
