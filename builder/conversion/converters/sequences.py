"""Whole sequences: stacked recurrent layers in one or two directions, unrolled or as a loop.

The input's part of every gate is one matrix product over the whole sequence. The steps are unrolled
if the sequence is static and short, and are an ILoop otherwise. Both directions of a layer are
computed together: the sequence of the second is reversed, and the products are batched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.converters.cells import Cell, State, Weights, together
from builder.conversion.dynamic import Size
from builder.conversion.extent import Extent
from builder.conversion.layers import gathered
from builder.conversion.values import Tensor
from builder.engine import ITensor, trt

MOST_UNROLLED_STEPS = 16
"""The longest sequence that is unrolled, if the unroll limit allows it: an LSTM of two layers in
both directions over 64 steps is 3,949 layers and compiles in 19 s, as a loop 126 layers in 0.4 s
(RTX 1.7, two cores).
"""


@dataclass(frozen=True)
class Options:
    """What all layers of a sequence have in common."""

    cell: type[Cell]
    states: bool
    """Whether the final states are computed."""
    extent: Extent


def sequence(
    ctx: ConversionContext,
    kind: type[Cell],
    x: ITensor,
    initial: State,
    weights: list[list[Weights]],
    *,
    batch_first: bool = False,
    states: bool = True,
    extent: Extent = Extent(),  # noqa: B008
) -> tuple[Any, ...]:
    """(output, final states...) of stacked layers; x is [time, batch, features], or batch first.
    Without `states` the final states are None. The output after the `extent` of a row is undefined.
    """
    options = Options(kind, states, extent)
    x = ctx.permute(x, [1, 0, 2]) if batch_first else x
    finals: list[State] = []
    for layer, directions in enumerate(weights):
        first = layer * len(directions)
        x, finals_of_layer = _layer(ctx, options, x, initial, first, directions)
        finals.extend(finals_of_layer)
    x = ctx.permute(x, [1, 0, 2]) if batch_first else x
    if not states:
        return x, *[None] * len(initial)
    return x, *(_joined(ctx, parts) for parts in zip(*finals, strict=True))


def _layer(
    ctx: ConversionContext,
    options: Options,
    x: ITensor,
    initial: State,
    first: int,
    directions: list[Weights],
) -> tuple[ITensor, list[State]]:
    """One layer: its output, and the final states of its directions with a first axis for them. Its
    initial states are those from index `first` of `initial` on.
    """
    if len(directions) == 2 and (joint_weights := together(directions)):
        start = tuple(_rows(ctx, part, first, 2) for part in initial)
        output, final = two_directions(ctx, options, x, start, joint_weights)
        return output, [final]
    outputs: list[ITensor] = []
    finals: list[State] = []
    for reverse, weight in enumerate(directions):
        start = tuple(pick(ctx, part, first + reverse) for part in initial)
        output, final = direction(ctx, options, x, start, weight, reverse=bool(reverse))
        outputs.append(output)
        finals.append(tuple(ctx.unsqueeze(part, [0]) for part in final))
    output = outputs[0] if len(outputs) == 1 else ctx.concatenate(outputs, 2)
    return output, finals


def two_directions(
    ctx: ConversionContext, options: Options, x: ITensor, start: State, weights: Weights
) -> tuple[Any, State]:
    """Both directions of a layer: [time, batch, 2 * width] and the final states [2, batch,
    width].
    """
    extent = options.extent
    cell = options.cell(ctx, weights, ctx.size(x, 1))
    steps = ctx.size(x, 0)
    batch = ctx.size(x, 1)
    gates = cell.project(x)
    sizes = [steps, batch, weights.gate]
    halves = [
        extent.part(ctx, gates, [0, i * weights.gate], sizes, reverse=bool(i))
        for i in range(2)
    ]
    inputs = ctx.concatenate([ctx.unsqueeze(half, [1]) for half in halves], 1)
    output, final = steps_of(ctx, options, cell, inputs, start, steps)
    sizes = [steps, 1, batch, output.shape[-1]]
    outputs = [
        extent.part(ctx, output, [i, 0, 0], sizes, reverse=bool(i)) for i in range(2)
    ]
    return ctx.concatenate(outputs, 2), final


def _rows(ctx: ConversionContext, x: Tensor, first: int, count: int) -> ITensor:
    """x[first : first + count]"""
    if isinstance(x, torch.Tensor):
        return ctx.constant(x[first : first + count])
    if x.shape[0] == count:
        return x
    sizes = [count, *ctx.sizes(x)[1:]]
    return ctx.slice(x, [first, 0, 0], sizes, [1, 1, 1])


def _joined(ctx: ConversionContext, parts: Sequence[ITensor]) -> ITensor:
    if len(parts) == 1:
        return parts[0]
    return ctx.concatenate(parts, 0)


def pick(ctx: ConversionContext, x: Tensor, index: int) -> ITensor:
    """x[index]"""
    if isinstance(x, torch.Tensor):
        return ctx.constant(x[index])
    if x.shape[0] == 1:
        return ctx.squeeze(x, [0])
    return gathered(ctx, x, torch.tensor(index), 0)


def stack(ctx: ConversionContext, parts: Sequence[ITensor]) -> ITensor:
    """The tensors along a new first axis."""
    rows = [ctx.unsqueeze(part, [0]) for part in parts]
    if len(rows) == 1:
        return rows[0]
    return ctx.concatenate(rows, 0)


def direction(
    ctx: ConversionContext,
    options: Options,
    x: ITensor,
    start: State,
    weights: Weights,
    *,
    reverse: bool,
) -> tuple[Any, State]:
    """One direction of one layer: [time, batch, width] and the final state."""
    extent = options.extent
    cell = options.cell(ctx, weights, ctx.size(x, 1))
    inputs = cell.project(x)
    steps = ctx.size(x, 0)
    if not (reverse and extent.ragged):
        return steps_of(ctx, options, cell, inputs, start, steps, reverse=reverse)
    inputs = extent.reversed_in_time(ctx, inputs)
    output, final = steps_of(ctx, options, cell, inputs, start, steps)
    return extent.reversed_in_time(ctx, output), final


def steps_of(
    ctx: ConversionContext,
    options: Options,
    cell: Cell,
    inputs: ITensor,
    start: State,
    steps: Size,
    *,
    reverse: bool = False,
) -> tuple[Any, State]:
    """All steps over `inputs` [time, ...]. Returns the state h after each step, and the final state
    (empty without `options.states`).
    """
    states, extent = options.states, options.extent
    at_ends = states and extent.ragged
    state_parts = len(start) if at_ends else 1
    most_unrolled = min(MOST_UNROLLED_STEPS, ctx.unroll_limit)
    run: Callable[..., tuple[list[Any], State]] = unrolled
    if not (isinstance(steps, int) and 0 < steps <= most_unrolled):
        run = partial(looped, return_last=states and not at_ends)
    outputs, final = run(ctx, cell, inputs, start, steps, state_parts, reverse=reverse)
    if at_ends:
        final = tuple(extent.ends(ctx, output) for output in outputs)
    return outputs[0], final


def unrolled(
    ctx: ConversionContext,
    cell: Cell,
    inputs: ITensor,
    state: State,
    steps: int,
    state_parts: int,
    *,
    reverse: bool,
) -> tuple[list[Any], State]:
    """Unrolled steps. Returns the first `state_parts` parts of the state after each step, and the
    last state.
    """
    order = list(range(steps))
    if reverse:
        order.reverse()
    states = []
    for step in order:
        state = cell.step(pick(ctx, inputs, step), state)
        states.append(state[:state_parts])
    if reverse:
        states.reverse()
    return [stack(ctx, parts) for parts in zip(*states, strict=True)], state


def looped(
    ctx: ConversionContext,
    cell: Cell,
    inputs: ITensor,
    start: State,
    steps: Size,
    state_parts: int,
    *,
    reverse: bool,
    return_last: bool,
) -> tuple[list[Any], State]:
    """An ILoop with an iterator over the gates' inputs, recurrences for the state, and concatenated
    outputs. Returns the first `state_parts` parts of the state after each step, and the last state
    (empty without `return_last`).
    """
    ctx.add_control_flow("LOOP")
    loop = ctx.net.add_loop()
    count = scalar_tensor(ctx, steps)
    loop.add_trip_limit(count, trt.TripLimit.COUNT)
    recurrences = [loop.add_recurrence(part) for part in start]
    pairs = zip(start, recurrences, strict=True)
    state = tuple(
        ctx.copy_sizes(part, recurrence.get_output(0)) for part, recurrence in pairs
    )
    item = loop.add_iterator(inputs, 0, reverse).get_output(0)
    following = cell.step(ctx.set_sizes(item, ctx.exprs(inputs)[1:]), state)
    for recurrence, value in zip(recurrences, following, strict=True):
        recurrence.set_input(1, value)
    order = trt.LoopOutput.REVERSE if reverse else trt.LoopOutput.CONCATENATE
    outputs = [
        value_of_each_step(ctx, loop, value, order, count, steps)
        for value in following[:state_parts]
    ]
    return outputs, _last_values(ctx, loop, start, state) if return_last else ()


def _last_values(
    ctx: ConversionContext, loop: Any, start: State, state: State
) -> State:
    """The state after the loop; `start` is the state before it, and `state` the one inside."""
    lasts = []
    for first, inside in zip(start, state, strict=True):
        output = loop.add_loop_output(inside, trt.LoopOutput.LAST_VALUE, 0)
        lasts.append(ctx.copy_sizes(first, output.get_output(0)))
    return tuple(lasts)


def value_of_each_step(
    ctx: ConversionContext,
    loop: Any,
    value: ITensor,
    order: Any,
    count: ITensor,
    steps: Size,
) -> ITensor:
    """[time, ...]: the value after each step."""
    gather = loop.add_loop_output(value, order, 0)
    gather.set_input(1, count)
    ctx.remember_dtype(gather.get_output(0), ctx.dtype(value))
    return ctx.set_sizes(gather.get_output(0), [steps, *ctx.exprs(value)])


def scalar_tensor(ctx: ConversionContext, size: Size) -> ITensor:
    """A size as a 0-d tensor, as for trip limits."""
    if isinstance(size, int):
        return ctx.constant(torch.tensor(size, dtype=torch.int32))
    return ctx.reshape(size.tensor, [])
