"""Axes of size zero: each layer returns an empty value or the value of an empty reduction."""

from __future__ import annotations

import pytest
import torch

from builder.engine import capabilities
from builder.engine.flavor import trt
from networks import constant, evaluate, exactly

EMPTY = torch.ones(2, 0, 3)
NONE, TRANSPOSE = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE


def softmax(net, x, axis):
    layer = net.add_softmax(x)
    layer.axes = 1 << axis
    return layer


def sliced(net, x):
    layer = net.add_slice(x, (0, -1, 1), (2, 2, 2), (1, 1, 1))
    layer.mode = trt.SampleMode.FILL
    layer.set_input(4, constant(net, 5.0))
    return layer


def gathered(net, x, axis):
    return net.add_gather(x, constant(net, [1, 0], torch.int32), axis)


def scattered(net, x):
    indices, updates = (
        constant(net, torch.ones(0, 1, dtype=torch.int32)),
        constant(net, torch.ones(0, 3)),
    )
    return net.add_scatter(
        net.add_reduce(x, trt.ReduceOperation.SUM, 2, False).get_output(0),
        indices,
        updates,
        trt.ScatterMode.ND,
    )


def transposed(net, x):
    layer = net.add_shuffle(x)
    layer.first_transpose = (2, 0, 1)
    return layer


def joined(net, x):
    layer = net.add_concatenation([x, x])
    layer.axis = 0
    return layer


CASES = {
    "unary": (
        lambda net, x: net.add_unary(x, trt.UnaryOperation.EXP),
        torch.ones(2, 0, 3),
    ),
    "activation": (
        lambda net, x: net.add_activation(x, trt.ActivationType.RELU),
        torch.ones(2, 0, 3),
    ),
    "elementwise": (
        lambda net, x: net.add_elementwise(
            x, constant(net, [[[2.0]]]), trt.ElementWiseOperation.SUM
        ),
        EMPTY,
    ),
    "softmax over others": (lambda net, x: softmax(net, x, 2), EMPTY),
    "softmax of nothing": (lambda net, x: softmax(net, x, 1), EMPTY),
    "cast": (lambda net, x: net.add_cast(x, trt.float16), EMPTY.half()),
    "product over nothing": (
        lambda net, x: net.add_matrix_multiply(x, TRANSPOSE, x, NONE),
        torch.zeros(2, 3, 3),
    ),
    "product of nothing": (
        lambda net, x: net.add_matrix_multiply(x, NONE, x, TRANSPOSE),
        torch.ones(2, 0, 0),
    ),
    "einsum": (
        lambda net, x: net.add_einsum([x, x], "bij,bik->bjk"),
        torch.zeros(2, 3, 3),
    ),
    "concatenation": (joined, EMPTY.repeat(2, 1, 1)),
    "fill": (sliced, torch.full((2, 2, 2), 5.0)),
    "gather beside": (lambda net, x: gathered(net, x, 0), EMPTY),
    "scatter of nothing": (scattered, torch.zeros(2, 3)),
    "sum": (
        lambda net, x: net.add_reduce(x, trt.ReduceOperation.SUM, 1 << 1, True),
        torch.zeros(2, 1, 3),
    ),
    "transpose": (transposed, torch.ones(3, 2, 0)),
}


UNCOMPILED_BY_8_6 = {"scatter of nothing", "einsum"}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_empty_axes(case, dynamic):
    build, expected = CASES[case]
    compiled = capabilities.current().has_int64 or case not in UNCOMPILED_BY_8_6
    exactly(evaluate(build, EMPTY, dynamic=dynamic, compiled=compiled), expected)
