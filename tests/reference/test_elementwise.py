"""Elementwise, unary, activation, select, cast: formulas of TensorRT's documentation, written out
with numpy.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from builder import reference
from builder.engine.flavor import trt
from builder.errors import NetworkEvaluationError
from networks import closely, constant, evaluate, exactly, network_of

ERF = np.vectorize(math.erf, otypes=[np.float32])
A = torch.tensor([[-7.5, -2.0, 0.0, 3.0, 7.5]])
B = torch.tensor([[2.0, -3.0, 4.0, 3.0, -2.0]])

FLOAT_OPS = {
    "SUM": [-5.5, -5.0, 4.0, 6.0, 5.5],
    "PROD": [-15.0, 6.0, 0.0, 9.0, -15.0],
    "MAX": [2.0, -2.0, 4.0, 3.0, 7.5],
    "MIN": [-7.5, -3.0, 0.0, 3.0, -2.0],
    "SUB": [-9.5, 1.0, -4.0, 0.0, 9.5],
    "DIV": [-3.75, np.float32(2 / 3), 0.0, 1.0, -3.75],
    "FLOOR_DIV": [-4.0, 0.0, 0.0, 1.0, -4.0],
    "EQUAL": [False, False, False, True, False],
    "GREATER": [False, True, False, False, True],
    "LESS": [True, False, True, False, False],
}


@pytest.mark.parametrize("op", FLOAT_OPS)
def test_binary_operations_match_numpy_on_floats(op):
    result = evaluate(
        lambda net, a, b: net.add_elementwise(
            a, b, getattr(trt.ElementWiseOperation, op)
        ),
        A,
        B,
    )
    exactly(result, torch.tensor([FLOAT_OPS[op]], dtype=result.dtype))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("DIV", [-3, -3, 3, 0]),
        ("FLOOR_DIV", [-4, -4, 3, -1]),
        ("MAX", [2, 7, 7, 5]),
        ("SUB", [-9, 9, 5, -6]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integer_division_truncates_and_floor_division_rounds_down(op, expected, dtype):
    a, b = (
        torch.tensor([-7, 7, 7, -1], dtype=dtype),
        torch.tensor([2, -2, 2, 5], dtype=dtype),
    )
    result = evaluate(
        lambda net, a, b: net.add_elementwise(
            a, b, getattr(trt.ElementWiseOperation, op)
        ),
        a,
        b,
    )
    exactly(result, torch.tensor(expected, dtype=dtype))


def test_powers_of_floats_match_numpy():
    a, b = torch.tensor([2.0, -2.0, 9.0, 0.0]), torch.tensor([3.0, 3.0, 0.5, 0.0])
    exactly(
        evaluate(
            lambda net, a, b: net.add_elementwise(a, b, trt.ElementWiseOperation.POW),
            a,
            b,
        ),
        [8.0, -8.0, 3.0, 1.0],
    )


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("AND", [False, False, True]),
        ("OR", [False, True, True]),
        ("XOR", [False, True, False]),
    ],
)
def test_logical_operations(op, expected):
    a, b = torch.tensor([False, False, True]), torch.tensor([False, True, True])
    exactly(
        evaluate(
            lambda net, a, b: net.add_elementwise(
                a, b, getattr(trt.ElementWiseOperation, op)
            ),
            a,
            b,
        ),
        torch.tensor(expected),
    )


def test_axes_of_size_one_are_broadcast_in_both_directions():
    a, b = torch.arange(3.0).reshape(3, 1), torch.arange(2.0).reshape(1, 2)
    result = evaluate(
        lambda net, a, b: net.add_elementwise(a, b, trt.ElementWiseOperation.SUM),
        a,
        b,
        dynamic=True,
    )
    exactly(result, [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]])


def test_float16_is_rounded_once_after_each_operation():
    a, b = (
        torch.tensor([2048.0], dtype=torch.float16),
        torch.tensor([1.0], dtype=torch.float16),
    )
    result = evaluate(
        lambda net, a, b: net.add_elementwise(a, b, trt.ElementWiseOperation.SUM), a, b
    )
    exactly(result, torch.tensor([2048.0], dtype=torch.float16))


def test_integer_division_by_zero_is_an_error():
    a, b = torch.tensor([1]), torch.tensor([0])
    _, network = network_of(
        lambda net, a, b: net.add_elementwise(a, b, trt.ElementWiseOperation.DIV),
        [a, b],
    )
    with pytest.raises(NetworkEvaluationError, match="ELEMENTWISE"):
        reference.run(network, [a, b])


X = np.array([-2.5, -1.5, -0.5, 0.0, 0.25, 0.5, 1.5, 2.5], dtype=np.float32)
SMALL = np.array([-0.9, -0.5, 0.0, 0.3, 0.99], dtype=np.float32)
POSITIVE = np.array([0.25, 1.0, 1.5, 40.0], dtype=np.float32)

UNARY_CASES = {
    "EXP": (X, np.exp),
    "LOG": (POSITIVE, np.log),
    "SQRT": (POSITIVE, np.sqrt),
    "RECIP": (POSITIVE, lambda x: 1 / x),
    "ABS": (X, np.abs),
    "NEG": (X, np.negative),
    "SIN": (X, np.sin),
    "COS": (X, np.cos),
    "TAN": (X, np.tan),
    "SINH": (X, np.sinh),
    "COSH": (X, np.cosh),
    "ASIN": (SMALL, np.arcsin),
    "ACOS": (SMALL, np.arccos),
    "ATAN": (X, np.arctan),
    "ASINH": (X, np.arcsinh),
    "ACOSH": (1 + POSITIVE, np.arccosh),
    "ATANH": (SMALL, np.arctanh),
    "CEIL": (X, np.ceil),
    "FLOOR": (X, np.floor),
    "ERF": (X, ERF),
    "SIGN": (X, np.sign),
    "ROUND": (X, lambda x: np.array([-2, -2, 0, 0, 0, 0, 2, 2], dtype=np.float32)),
    "ISINF": (np.array([np.inf, -np.inf, np.nan, 1], dtype=np.float32), np.isinf),
    "ISNAN": (np.array([np.inf, -np.inf, np.nan, 1], dtype=np.float32), np.isnan),
}


@pytest.mark.parametrize("op", UNARY_CASES)
def test_unary_operations(op):
    x, formula = UNARY_CASES[op]
    result = evaluate(
        lambda net, x: net.add_unary(x, getattr(trt.UnaryOperation, op)),
        torch.from_numpy(x),
    )
    closely(result, formula(x))


def test_every_unary_operation_and_activation_has_a_case():
    assert {*UNARY_CASES, "NOT"} >= set(trt.UnaryOperation.__members__)
    assert set(ACTIVATION_CASES) >= set(trt.ActivationType.__members__)
    assert {*FLOAT_OPS, "POW", "AND", "OR", "XOR"} >= set(
        trt.ElementWiseOperation.__members__
    )


def test_not_of_bools_and_sign_of_integers():
    flags = torch.tensor([True, False])
    exactly(
        evaluate(lambda net, x: net.add_unary(x, trt.UnaryOperation.NOT), flags), ~flags
    )
    numbers = torch.tensor([-3, 0, 5], dtype=torch.int32)
    exactly(
        evaluate(lambda net, x: net.add_unary(x, trt.UnaryOperation.SIGN), numbers),
        torch.tensor([-1, 0, 1], dtype=torch.int32),
    )


def _gelu_tanh(x, a, b):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (0.044715 * x**3 + x)))


ACTIVATION_CASES = {
    "RELU": lambda x, a, b: np.maximum(x, 0),
    "SIGMOID": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "TANH": lambda x, a, b: np.tanh(x),
    "LEAKY_RELU": lambda x, a, b: np.where(x >= 0, x, a * x),
    "ELU": lambda x, a, b: np.where(x >= 0, x, a * (np.exp(x) - 1)),
    "SELU": lambda x, a, b: np.where(x > 0, b * x, b * (a * np.exp(x) - a)),
    "SOFTSIGN": lambda x, a, b: x / (1 + np.abs(x)),
    "SOFTPLUS": lambda x, a, b: a * np.log(np.exp(b * x) + 1),
    "CLIP": lambda x, a, b: np.maximum(a, np.minimum(b, x)),
    "HARD_SIGMOID": lambda x, a, b: np.maximum(0, np.minimum(1, a * x + b)),
    "SCALED_TANH": lambda x, a, b: a * np.tanh(b * x),
    "THRESHOLDED_RELU": lambda x, a, b: np.where(x > a, x, 0),
    "GELU_ERF": lambda x, a, b: 0.5 * x * (1 + ERF(math.sqrt(0.5) * x)),
    "GELU_TANH": _gelu_tanh,
}


@pytest.mark.parametrize("kind", ACTIVATION_CASES)
@pytest.mark.parametrize(("alpha", "beta"), [(0.25, 1.5), (1.0, 0.5)])
def test_activations(kind, alpha, beta):
    def build(net, x):
        layer = net.add_activation(x, getattr(trt.ActivationType, kind))
        layer.alpha, layer.beta = alpha, beta
        return layer

    expected = ACTIVATION_CASES[kind](X.astype(np.float64), alpha, beta).astype(
        np.float32
    )
    closely(evaluate(build, torch.from_numpy(X)), expected, atol=2e-7)


def test_softplus_of_large_values_does_not_overflow():
    def build(net, x):
        layer = net.add_activation(x, trt.ActivationType.SOFTPLUS)
        layer.alpha, layer.beta = 1.0, 1.0
        return layer

    exactly(evaluate(build, torch.tensor([200.0, -200.0])), [200.0, 0.0])


def test_parametric_relu_broadcasts_slopes():
    x, slopes = (
        torch.tensor([[[-1.0, 2.0], [-3.0, -4.0]]]),
        torch.tensor([[[0.5], [0.1]]]),
    )
    result = evaluate(
        lambda net, x: net.add_parametric_relu(x, constant(net, slopes)), x
    )
    closely(result, [[[-0.5, 2.0], [-0.3, -0.4]]])


def test_select_broadcasts_all_three_inputs():
    condition = torch.tensor([[True], [False]])
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[-1.0, -2.0]])
    exactly(
        evaluate(lambda net, c, a, b: net.add_select(c, a, b), condition, a, b),
        [[1.0, 2.0], [-1.0, -2.0]],
    )


@pytest.mark.parametrize(
    ("value", "to", "expected"),
    [
        (
            torch.tensor([-2.7, 0.0, 2.7]),
            "INT32",
            torch.tensor([-2, 0, 2], dtype=torch.int32),
        ),
        (torch.tensor([-2.7, 0.0, 2.7]), "INT64", torch.tensor([-2, 0, 2])),
        (torch.tensor([-0.5, 0.0, 2.7]), "BOOL", torch.tensor([True, False, True])),
        (
            torch.tensor([1.0, 70000.0]),
            "HALF",
            torch.tensor([1.0, math.inf], dtype=torch.float16),
        ),
        (torch.tensor([1.00390625]), "BF16", torch.tensor([1.0], dtype=torch.bfloat16)),
        (torch.tensor([True, False]), "FLOAT", torch.tensor([1.0, 0.0])),
        (torch.tensor([3, -4], dtype=torch.int32), "FLOAT", torch.tensor([3.0, -4.0])),
        (
            torch.tensor([0, 255], dtype=torch.uint8),
            "FLOAT",
            torch.tensor([0.0, 255.0]),
        ),
    ],
)
def test_casts(value, to, expected):
    exactly(
        evaluate(lambda net, x: net.add_cast(x, getattr(trt.DataType, to)), value),
        expected,
    )
