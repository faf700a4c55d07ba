"""Nested loops and conditionals, as ILoop and IIfConditional document them."""

from __future__ import annotations

import pytest
import torch

from builder import reference
from builder.engine.flavor import trt
from builder.errors import NetworkEvaluationError
from networks import closely, constant, evaluate, exactly, network_of, plan_of

SUM, PROD, LESS = (
    trt.ElementWiseOperation.SUM,
    trt.ElementWiseOperation.PROD,
    trt.ElementWiseOperation.LESS,
)
COUNT, WHILE = trt.TripLimit.COUNT, trt.TripLimit.WHILE
LAST, CONCATENATE, REVERSE = (
    trt.LoopOutput.LAST_VALUE,
    trt.LoopOutput.CONCATENATE,
    trt.LoopOutput.REVERSE,
)


def add(net, a, b, op=SUM):
    return net.add_elementwise(a, b, op).get_output(0)


def counted(net, count):
    loop = net.add_loop()
    loop.add_trip_limit(constant(net, count, torch.int32), COUNT)
    return loop


def collect(net, loop, tensor, kind, length, axis=0):
    output = loop.add_loop_output(tensor, kind, axis)
    output.set_input(1, constant(net, length, torch.int32))
    return output.get_output(0)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_recurrence_returns_its_last_value(count):
    def build(net, x):
        loop = counted(net, count)
        state = loop.add_recurrence(x)
        state.set_input(1, add(net, state.get_output(0), constant(net, [2.0]), PROD))
        return loop.add_loop_output(state.get_output(0), LAST)

    exactly(evaluate(build, torch.tensor([3.0])), [3.0 * 2**count])


@pytest.mark.parametrize(
    ("reverse", "expected"),
    [(False, [0.0, 1.0, 3.0, 6.0]), (True, [3.0, 5.0, 6.0, 6.0])],
)
def test_iterator_slices_in_both_directions(reverse, expected):
    def build(net, x):
        loop = counted(net, 4)
        item = loop.add_iterator(x, 1, reverse).get_output(0)
        state = loop.add_recurrence(constant(net, [0.0]))
        total = add(net, state.get_output(0), item)
        state.set_input(1, total)
        return collect(net, loop, total, CONCATENATE, 4)

    result = evaluate(build, torch.tensor([[0.0, 1.0, 2.0, 3.0]]))
    exactly(result, torch.tensor(expected)[:, None])


@pytest.mark.parametrize("kind", [CONCATENATE, REVERSE])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_outputs_are_stacked_along_a_new_axis(kind, axis):
    x = torch.arange(12.0).reshape(3, 2, 2)

    def build(net, x):
        loop = counted(net, 3)
        item = loop.add_iterator(x, 0, False).get_output(0)
        return collect(
            net,
            loop,
            net.add_unary(item, trt.UnaryOperation.NEG).get_output(0),
            kind,
            3,
            axis,
        )

    parts = [-row for row in x]
    exactly(
        evaluate(build, x),
        torch.stack(parts if kind == CONCATENATE else parts[::-1], axis),
    )


def test_concatenated_recurrence_has_values_before_each_iteration():
    def build(net, x):
        loop = counted(net, 3)
        state = loop.add_recurrence(x)
        state.set_input(1, add(net, state.get_output(0), constant(net, [1.0])))
        return collect(net, loop, state.get_output(0), CONCATENATE, 3)

    exactly(evaluate(build, torch.tensor([5.0])), [[5.0], [6.0], [7.0]])


def test_zero_iterations_return_an_empty_axis():
    def build(net, x, count):
        loop = net.add_loop()
        loop.add_trip_limit(count, COUNT)
        item = loop.add_iterator(x, 0, False).get_output(0)
        output = loop.add_loop_output(
            net.add_unary(item, trt.UnaryOperation.NEG).get_output(0), CONCATENATE
        )
        output.set_input(1, count)
        return output

    inputs = [torch.ones(0, 4), torch.tensor(0, dtype=torch.int32)]
    _, network = network_of(build, inputs, dynamic=True)
    exactly(reference.run(network, inputs)[0], torch.ones(0, 4))


def test_an_iteration_that_does_not_run_is_not_evaluated():
    def build(net, x, count):
        loop = net.add_loop()
        loop.add_trip_limit(count, COUNT)
        state = loop.add_recurrence(x)
        state.set_input(1, failing(net, state.get_output(0)))
        output = loop.add_loop_output(failing(net, state.get_output(0)), CONCATENATE)
        output.set_input(1, count)
        return output

    inputs = [torch.ones(4), torch.tensor(0, dtype=torch.int32)]
    _, network = network_of(build, inputs)
    exactly(reference.run(network, inputs)[0], torch.ones(0, 4))


def while_below(net, x, bound, limit=None):
    """Doubles x while it is below the bound, at most `limit` times: (last value, iterations
    counted).
    """
    loop = net.add_loop()
    state = loop.add_recurrence(x)
    count = loop.add_recurrence(constant(net, [0.0]))
    below = net.add_elementwise(
        state.get_output(0), constant(net, [bound]), LESS
    ).get_output(0)
    scalar = net.add_shuffle(below)
    scalar.reshape_dims = ()
    loop.add_trip_limit(scalar.get_output(0), WHILE)
    if limit is not None:
        loop.add_trip_limit(constant(net, limit, torch.int32), COUNT)
    state.set_input(1, add(net, state.get_output(0), constant(net, [2.0]), PROD))
    count.set_input(1, add(net, count.get_output(0), constant(net, [1.0])))
    return [loop.add_loop_output(r.get_output(0), LAST) for r in (state, count)]


@pytest.mark.parametrize(
    ("start", "limit", "expected"),
    [(1.0, None, (16.0, 4)), (10.0, None, (10.0, 0)), (1.0, 2, (4.0, 2))],
)
def test_while_loop_ends_at_its_condition_or_trip_limit(start, limit, expected):
    value, count = evaluate(
        lambda net, x: while_below(net, x, 10.0, limit), torch.tensor([start])
    )
    exactly(value, [expected[0]])
    exactly(count, [float(expected[1])])


def test_short_concatenation_is_padded_with_nan():
    def build(net, x):
        outputs = while_below(net, x, 4.0)
        loop, state = outputs[0].loop, outputs[0].get_input(0)
        return collect(net, loop, state, CONCATENATE, 4)

    # an engine leaves there what was in its memory
    result = evaluate(build, torch.tensor([1.0]), ran=False)
    exactly(result, [[1.0], [2.0], [torch.nan], [torch.nan]])


def test_iterator_past_the_end_of_its_axis_is_an_error():
    def build(net, x):
        loop = counted(net, 3)
        state = loop.add_recurrence(constant(net, 0.0))
        state.set_input(
            1,
            add(net, state.get_output(0), loop.add_iterator(x, 0, False).get_output(0)),
        )
        return loop.add_loop_output(state.get_output(0), LAST)

    _, network = network_of(build, [torch.ones(2)])
    with pytest.raises(NetworkEvaluationError, match="ITERATOR"):
        reference.run(network, [torch.ones(2)])


def test_nested_loop_restarts_in_each_iteration():
    """For each row: the sum of the running totals of its elements."""
    x = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])

    def build(net, x):
        outer = counted(net, 2)
        row = outer.add_iterator(x, 0, False).get_output(0)
        grand = outer.add_recurrence(constant(net, 0.0))
        inner = counted(net, 3)
        item = inner.add_iterator(row, 0, False).get_output(0)
        total = inner.add_recurrence(constant(net, 0.0))
        total.set_input(1, add(net, total.get_output(0), item))
        totals = collect(
            net, inner, add(net, total.get_output(0), item), CONCATENATE, 3
        )
        summed = net.add_reduce(totals, trt.ReduceOperation.SUM, 1, False).get_output(0)
        grand.set_input(1, add(net, grand.get_output(0), summed))
        return [
            outer.add_loop_output(grand.get_output(0), LAST),
            collect(net, outer, totals, CONCATENATE, 2),
        ]

    grand, totals = evaluate(build, x)
    exactly(totals, x.cumsum(1))
    exactly(grand, x.cumsum(1).sum())


def test_lstm_matches_torch():
    torch.manual_seed(0)
    lstm, x = torch.nn.LSTM(3, 4), torch.randn(7, 2, 3)
    wi, wh, bi, bh = (p.detach() for p in lstm.parameters())

    def build(net, x):
        def gates(t, w):
            return net.add_matrix_multiply(
                t,
                trt.MatrixOperation.NONE,
                constant(net, w),
                trt.MatrixOperation.TRANSPOSE,
            ).get_output(0)

        loop = counted(net, 7)
        item = loop.add_iterator(x, 0, False).get_output(0)
        h, c = (loop.add_recurrence(constant(net, torch.zeros(2, 4))) for _ in range(2))
        total = add(net, gates(item, wi), gates(h.get_output(0), wh))
        total = add(net, total, constant(net, (bi + bh)[None]))
        parts = [
            net.add_slice(total, (0, 4 * i), (2, 4), (1, 1)).get_output(0)
            for i in range(4)
        ]
        kinds = (
            trt.ActivationType.SIGMOID,
            trt.ActivationType.SIGMOID,
            trt.ActivationType.TANH,
            trt.ActivationType.SIGMOID,
        )
        i, f, g, o = (
            net.add_activation(p, kind).get_output(0)
            for p, kind in zip(parts, kinds, strict=True)
        )
        cell = add(net, add(net, f, c.get_output(0), PROD), add(net, i, g, PROD))
        hidden = add(
            net,
            o,
            net.add_activation(cell, trt.ActivationType.TANH).get_output(0),
            PROD,
        )
        h.set_input(1, hidden)
        c.set_input(1, cell)
        return [
            collect(net, loop, hidden, CONCATENATE, 7),
            *(loop.add_loop_output(r.get_output(0), LAST) for r in (h, c)),
        ]

    expected, (h, c) = lstm(x)
    for actual, wanted in zip(evaluate(build, x), (expected, h[0], c[0]), strict=True):
        closely(actual, wanted.detach())


def choose(net, condition, x, true, false):
    """If condition: true(x), else false(x)."""
    conditional = net.add_if_conditional()
    conditional.set_condition(condition)
    inner = conditional.add_input(x).get_output(0)
    return conditional.add_output(true(inner), false(inner)).get_output(0)


def negated(net, x):
    return net.add_unary(x, trt.UnaryOperation.NEG).get_output(0)


@pytest.mark.parametrize("flag", [True, False])
def test_conditional_returns_the_selected_branch(flag):
    def build(net, x, c):
        return choose(net, c, x, lambda t: negated(net, t), lambda t: add(net, t, t))

    exactly(
        evaluate(build, torch.tensor([3.0]), torch.tensor(flag)),
        [-3.0] if flag else [6.0],
    )


def failing(net, x):
    """x divided by zero as integers, which no evaluation allows."""
    number = net.add_cast(x, trt.int32).get_output(0)
    quotient = add(
        net, number, constant(net, [0], torch.int32), trt.ElementWiseOperation.DIV
    )
    return net.add_cast(quotient, trt.float32).get_output(0)


def test_unselected_branch_is_not_evaluated():
    def build(net, x, c):
        return choose(net, c, x, lambda t: negated(net, t), lambda t: failing(net, t))

    inputs = [torch.tensor([5.0]), torch.tensor(True)]
    _, network = network_of(build, inputs)
    exactly(reference.run(network, inputs)[0], [-5.0])
    with pytest.raises(NetworkEvaluationError, match="ELEMENTWISE"):
        reference.run(network, [inputs[0], torch.tensor(False)])


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_nested_conditional_with_a_layer_shared_by_both_branches(first, second):
    def build(net, x, c, d):
        shared = add(net, x, constant(net, [1.0]))

        def inner(t):
            return choose(
                net, d, t, lambda u: add(net, u, shared), lambda u: failing(net, u)
            )

        return choose(net, c, x, inner, lambda t: add(net, t, shared, PROD))

    inputs = [torch.tensor([3.0]), torch.tensor(first), torch.tensor(second)]
    _, network = network_of(build, inputs)
    if first and not second:
        with pytest.raises(NetworkEvaluationError, match="ELEMENTWISE"):
            reference.run(network, inputs)
    else:
        exactly(reference.run(network, inputs)[0], [7.0] if first else [12.0])


@pytest.mark.parametrize("flag", [True, False])
def test_loop_in_a_branch(flag):
    def build(net, x, c):
        def looped(t):
            loop = counted(net, 3)
            state = loop.add_recurrence(t)
            state.set_input(1, add(net, state.get_output(0), t))
            return loop.add_loop_output(state.get_output(0), LAST).get_output(0)

        return choose(net, c, x, looped, lambda t: negated(net, t))

    inputs = [torch.tensor([2.0]), torch.tensor(flag)]
    builder, network = network_of(build, inputs)
    exactly(reference.run(network, inputs)[0], [8.0] if flag else [-2.0])
    assert plan_of(builder, network, inputs) is not None


def test_conditional_in_a_loop_is_evaluated_in_each_iteration():
    """Adds an element where it is positive, else keeps the sum."""

    def build(net, x):
        loop = counted(net, 4)
        item = loop.add_iterator(x, 0, False).get_output(0)
        state = loop.add_recurrence(constant(net, 0.0))
        positive = net.add_elementwise(
            item, constant(net, 0.0), trt.ElementWiseOperation.GREATER
        ).get_output(0)
        conditional = net.add_if_conditional()
        conditional.set_condition(positive)
        total, value = (
            conditional.add_input(t).get_output(0) for t in (state.get_output(0), item)
        )
        kept = net.add_identity(total).get_output(0)
        state.set_input(
            1, conditional.add_output(add(net, total, value), kept).get_output(0)
        )
        return loop.add_loop_output(state.get_output(0), LAST)

    inputs = [torch.tensor([1.0, -5.0, 2.0, 4.0])]
    _, network = network_of(build, inputs)
    exactly(reference.run(network, inputs)[0], 7.0)


def test_cycle_outside_a_loop_is_an_error():
    def build(net, x):
        first = net.add_unary(x, trt.UnaryOperation.NEG)
        second = net.add_unary(first.get_output(0), trt.UnaryOperation.NEG)
        first.set_input(0, second.get_output(0))
        return second

    _, network = network_of(build, [torch.ones(1)])
    with pytest.raises(NetworkEvaluationError, match="depends on itself"):
        reference.run(network, [torch.ones(1)])
