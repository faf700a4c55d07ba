"""Recurrent layers and cells: LSTM, GRU and plain RNN."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

from builder.conversion.context import ConversionContext
from builder.conversion.converters.cells import (
    GRU,
    LSTM,
    Cell,
    Relu,
    State,
    Tanh,
    Weights,
    weights_of,
)
from builder.conversion.converters.sequences import sequence
from builder.conversion.registry import converter, for_each
from builder.conversion.values import Tensor
from builder.engine import ITensor
from builder.graph_types import Node


class Kind(NamedTuple):
    """A cell, and the number of tensors of its state."""

    cell: type[Cell]
    states: int


KINDS = {
    "lstm": Kind(LSTM, 2),
    "gru": Kind(GRU, 1),
    "rnn_tanh": Kind(Tanh, 1),
    "rnn_relu": Kind(Relu, 1),
}
"""By operator's name."""


def module_of(name: str) -> str:
    """The torch module of an operator, such as torch.nn.RNN for `rnn_tanh`."""
    return f"torch.nn.{name.partition('_')[0].upper()}"


def state_of(hx: ITensor | list[ITensor]) -> State:
    """The state. In a schema it is a list if it has several tensors."""
    return tuple(hx) if isinstance(hx, list) else (hx,)


# Single cells


def single(
    ctx: ConversionContext,
    kind: type[Cell],
    x: ITensor,
    state: State,
    *weights: Tensor | None,
) -> State:
    """One step of a single cell. An input without a batch axis gets one."""
    unbatched = ctx.rank(x) == 1
    if unbatched:
        x = ctx.unsqueeze(x, [0])
        state = tuple(ctx.unsqueeze(part, [0]) for part in state)
    cell = kind(ctx, Weights(*weights), ctx.size(x, 0))
    state = cell.step(cell.project(x), state)
    if unbatched:
        return tuple(ctx.squeeze(part, [0]) for part in state)
    return state


@for_each(*KINDS.items())
def _register_cell(name: str, kind: Kind) -> None:
    @converter(f"aten::{name}_cell")
    def cell(
        ctx: ConversionContext,
        x: ITensor,
        hx: ITensor | list[ITensor],
        *weights: Tensor | None,
    ) -> Any:
        state = single(ctx, kind.cell, x, state_of(hx), *weights)
        if kind.states > 1:
            return state
        return state[0]

    cell.__doc__ = f"{module_of(name)}Cell"


# Whole sequences


def dropout_in_training(ctx: ConversionContext, call: SimpleNamespace) -> str | None:
    """no dropout in training"""
    if call.train and call.dropout > 0:
        return "dropout in training draws random numbers"
    return None


def reads_states(node: Node) -> bool:
    """Whether the final states have users; otherwise they are not computed."""
    return any(value.uses() for value in list(node.outputs())[1:])


@for_each(*KINDS.items())
def _register_sequence(name: str, kind: Kind) -> None:
    @converter(f"aten::{name}.input", when=dropout_in_training)
    def layer(
        ctx: ConversionContext,
        node: Node,
        x: ITensor,
        hx: ITensor | list[ITensor],
        params: list[Tensor],
        has_biases: bool,
        num_layers: int,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        return sequence(
            ctx,
            kind.cell,
            x,
            state_of(hx),
            weights_of(params, has_biases, num_layers, bidirectional),
            batch_first=batch_first,
            states=reads_states(node),
        )

    text = f"{module_of(name)}: stacked, in both directions, from any initial state"
    layer.__doc__ = text + (", with projections" if kind.cell is LSTM else "")
