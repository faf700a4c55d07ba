"""Reductions, matrix products and norms, compared with the documented formulas in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from builder import reference
from builder.engine.flavor import trt
from builder.errors import NetworkEvaluationError
from networks import closely, constant, evaluate, exactly, network_of, weights

RANDOM = np.random.default_rng(1)
NONE, TRANSPOSE, VECTOR = (
    trt.MatrixOperation.NONE,
    trt.MatrixOperation.TRANSPOSE,
    trt.MatrixOperation.VECTOR,
)
REDUCTIONS = {
    "SUM": np.sum,
    "PROD": np.prod,
    "MAX": np.max,
    "MIN": np.min,
    "AVG": np.mean,
}


def normal(*shape):
    return torch.from_numpy(RANDOM.standard_normal(shape).astype(np.float32))


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("axes", [(0,), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("keep", [True, False])
def test_reductions(op, axes, keep):
    x = normal(2, 3, 4)
    mask = sum(1 << axis for axis in axes)
    result = evaluate(
        lambda net, x: net.add_reduce(x, getattr(trt.ReduceOperation, op), mask, keep),
        x,
    )
    closely(
        result,
        REDUCTIONS[op](x.double().numpy(), axis=axes, keepdims=keep).astype(np.float32),
    )


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        ("SUM", torch.float32, 0.0),
        ("PROD", torch.float32, 1.0),
        ("MAX", torch.float32, -np.inf),
        ("MIN", torch.float16, np.inf),
        ("AVG", torch.float32, np.nan),
        ("SUM", torch.int32, 0),
        ("PROD", torch.int32, 1),
        ("MAX", torch.int32, -(2**31)),
        ("MIN", torch.int32, 2**31 - 1),
        ("AVG", torch.int32, 0),
    ],
)
def test_empty_reductions_return_the_documented_values(op, dtype, expected):
    x = torch.ones(2, 0, dtype=dtype)
    build = lambda net, x: net.add_reduce(x, getattr(trt.ReduceOperation, op), 2, False)  # noqa: E731
    exactly(evaluate(build, x), torch.tensor([expected] * 2, dtype=dtype))


def test_integer_reductions_are_exact_and_averages_truncate():
    x = torch.tensor([[2**40, 3, -8], [1, 1, -1]])
    exactly(
        evaluate(
            lambda net, x: net.add_reduce(x, trt.ReduceOperation.SUM, 2, False), x
        ),
        [2**40 - 5, 1],
    )
    x = torch.tensor([[-1, -1, -2], [1, 1, 3]], dtype=torch.int32)
    result = evaluate(
        lambda net, x: net.add_reduce(x, trt.ReduceOperation.AVG, 2, False), x
    )
    exactly(result, torch.tensor([-1, 1], dtype=torch.int32))


def test_float16_sum_accumulates_in_float32():
    x = torch.ones(1, 4096, dtype=torch.float16)
    result = evaluate(
        lambda net, x: net.add_reduce(x, trt.ReduceOperation.SUM, 2, False), x
    )
    exactly(result, torch.tensor([4096.0], dtype=torch.float16))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(axis):
    def build(net, x):
        layer = net.add_softmax(x)
        layer.axes = 1 << axis
        return layer

    x = normal(2, 3, 4) * 30
    powers = np.exp(x.double().numpy() - x.double().numpy().max(axis, keepdims=True))
    closely(
        evaluate(build, x),
        (powers / powers.sum(axis, keepdims=True)).astype(np.float32),
    )


@pytest.mark.parametrize("op", ["MAX", "MIN"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["INT32", "INT64"])
def test_top_k_is_sorted_and_stable(op, axis, kind):
    x = torch.tensor(
        [[1.0, 5.0, 5.0, 2.0], [3.0, 3.0, 3.0, 3.0], [9.0, -1.0, -1.0, 9.0]]
    )
    order = np.argsort(
        -x.numpy() if op == "MAX" else x.numpy(), axis=axis, kind="stable"
    )
    positions = np.take(order, range(2), axis)

    def build(net, x):
        layer = net.add_topk(
            x, getattr(trt.TopKOperation, op), 2, 1 << axis, getattr(trt.DataType, kind)
        )
        return [layer.get_output(0), layer.get_output(1)]

    values, indices = evaluate(build, x)
    exactly(values, np.take_along_axis(x.numpy(), positions, axis))
    exactly(indices, positions.astype({"INT32": np.int32, "INT64": np.int64}[kind]))


def test_top_k_reads_k_from_its_second_input():
    def build(net, x):
        layer = net.add_topk(x, trt.TopKOperation.MAX, 1, 1 << 1)
        layer.set_input(1, constant(net, 3, torch.int32))
        return [layer.get_output(0), layer.get_output(1)]

    exactly(evaluate(build, torch.tensor([[1.0, 4.0, 2.0, 3.0]]))[0], [[4.0, 3.0, 2.0]])


PRODUCTS = [
    ((2, 3), NONE, (3, 4), NONE, "ij,jk->ik"),
    ((3, 2), TRANSPOSE, (4, 3), TRANSPOSE, "ji,kj->ik"),
    ((5, 2, 3), NONE, (5, 4, 3), TRANSPOSE, "bij,bkj->bik"),
    ((2, 3), NONE, (3,), VECTOR, "ij,j->i"),
    ((3,), VECTOR, (3, 4), NONE, "j,jk->k"),
    ((3,), VECTOR, (3,), VECTOR, "j,j->"),
    ((5, 3), VECTOR, (5, 3), VECTOR, "bj,bj->b"),
    ((5, 2, 3), NONE, (5, 3), VECTOR, "bij,bj->bi"),
    ((5, 3), VECTOR, (5, 4, 3), TRANSPOSE, "bj,bkj->bk"),
]


@pytest.mark.parametrize(("left", "op0", "right", "op1", "equation"), PRODUCTS)
def test_matrix_products(left, op0, right, op1, equation):
    a, b = normal(*left), normal(*right)
    result = evaluate(lambda net, a, b: net.add_matrix_multiply(a, op0, b, op1), a, b)
    closely(
        result,
        np.einsum(equation, a.double().numpy(), b.double().numpy()).astype(np.float32),
        atol=3e-6,
    )


def test_batched_matrix_products_broadcast_axes_of_size_one():
    a, b = normal(4, 1, 2, 3), normal(1, 5, 3, 2)
    result = evaluate(lambda net, a, b: net.add_matrix_multiply(a, NONE, b, NONE), a, b)
    closely(
        result, (a.double().numpy() @ b.double().numpy()).astype(np.float32), atol=3e-6
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_reduced_precision_products_round_once(dtype):
    a, b = normal(2, 64).to(dtype), normal(64, 3).to(dtype)
    result = evaluate(lambda net, a, b: net.add_matrix_multiply(a, NONE, b, NONE), a, b)
    exactly(result, (a.double() @ b.double()).to(dtype))


@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "ij,jk", "ij,kj->k", "ij,ij->", "ij,j->ij"]
)
def test_einsum(equation):
    shapes = {
        "ij,jk->ik": (3, 4),
        "ij,jk": (3, 4),
        "ij,kj->k": (4, 3),
        "ij,ij->": (2, 3),
        "ij,j->ij": (3,),
    }
    a, b = normal(2, 3), normal(*shapes[equation])
    expected = np.einsum(equation, a.double().numpy(), b.double().numpy()).astype(
        np.float32
    )
    closely(
        evaluate(lambda net, a, b: net.add_einsum([a, b], equation), a, b), expected
    )


def normalized(x, axes, epsilon):
    x = x.double().numpy()
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(
        x.var(axes, keepdims=True) + epsilon
    )


@pytest.mark.parametrize(
    ("axes", "shape"), [((2,), (1, 1, 5)), ((1, 2), (1, 4, 5)), ((1,), (1, 4, 1))]
)
def test_normalization(axes, shape):
    x, scale, bias = normal(3, 4, 5), normal(*shape), normal(*shape)
    mask = sum(1 << axis for axis in axes)

    def build(net, x):
        layer = net.add_normalization_v2(
            x, constant(net, scale), constant(net, bias), mask
        )
        layer.epsilon = 0.25
        return layer

    expected = (
        normalized(x, axes, 0.25) * scale.double().numpy() + bias.double().numpy()
    )
    closely(evaluate(build, x), expected.astype(np.float32), atol=2e-6)


@pytest.mark.parametrize("version", [1, 2])
def test_group_normalization_scales_per_group_or_channel(version):
    x, groups, channels = normal(2, 6, 3, 3), 2, 6
    width = groups if version == 1 else channels
    scale, bias = normal(1, width, 1, 1), normal(1, width, 1, 1)

    def build(net, x):
        add = net.add_normalization if version == 1 else net.add_normalization_v2
        layer = add(x, constant(net, scale), constant(net, bias), 1 << 2 | 1 << 3)
        layer.num_groups = groups
        return layer

    expected = normalized(x.reshape(2, groups, 3, 3, 3), (2, 3, 4), 1e-5).reshape(
        2, 6, 3, 3
    )
    wide = [
        np.repeat(c.double().numpy(), channels // width, axis=1) for c in (scale, bias)
    ]
    closely(
        evaluate(build, x), (expected * wide[0] + wide[1]).astype(np.float32), atol=2e-6
    )


def test_float16_normalization_computes_in_float32():
    """Squares of 300 overflow float16."""
    x = torch.tensor([[300.0, -300.0]], dtype=torch.float16)
    one, zero = (
        torch.ones(1, 1, dtype=torch.float16),
        torch.zeros(1, 1, dtype=torch.float16),
    )

    def build(net, x):
        return net.add_normalization_v2(x, constant(net, one), constant(net, zero), 2)

    exactly(evaluate(build, x), torch.tensor([[1.0, -1.0]], dtype=torch.float16))


@pytest.mark.parametrize("mode", ["UNIFORM", "CHANNEL", "ELEMENTWISE"])
@pytest.mark.parametrize("axis", [0, 1])
def test_scale_layer_applies_scale_shift_and_power(mode, axis):
    x = normal(2, 3, 2, 2).abs()
    shape = {
        "UNIFORM": (1,),
        "CHANNEL": (x.shape[axis],),
        "ELEMENTWISE": tuple(x.shape[axis:]),
    }[mode]
    scale, shift, power = (
        RANDOM.uniform(0.5, 2, shape).astype(np.float32) for _ in range(3)
    )

    def build(net, x):
        values = (weights(v.reshape(-1)) for v in (shift, scale, power))
        return net.add_scale_nd(x, getattr(trt.ScaleMode, mode), *values, axis)

    def wide(v):
        return (
            v.reshape(*shape, *[1] * (3 - axis)).astype(np.float64)
            if mode == "CHANNEL"
            else v.astype(np.float64)
        )

    expected = (x.double().numpy() * wide(scale) + wide(shift)) ** wide(power)
    closely(evaluate(build, x), expected.astype(np.float32), rtol=4e-6)


def test_scale_layer_without_coefficients_is_the_identity():
    x = normal(1, 2, 3, 3)
    build = lambda net, x: net.add_scale(  # noqa: E731
        x, trt.ScaleMode.UNIFORM, trt.Weights(), trt.Weights(), trt.Weights()
    )
    exactly(evaluate(build, x), x)


def test_elementwise_inputs_of_different_ranks_are_rejected():
    def build(net, a, b):
        layer = net.add_elementwise(a, a, trt.ElementWiseOperation.SUM)
        layer.set_input(1, b)
        return layer

    inputs = [torch.ones(2, 2), torch.ones(2)]
    _, network = network_of(build, inputs)
    with pytest.raises(NetworkEvaluationError, match="ranks"):
        reference.run(network, inputs)


def test_top_k_larger_than_the_axis_is_an_error():
    def build(net, x, k):
        layer = net.add_topk(x, trt.TopKOperation.MAX, 1, 1)
        layer.set_input(1, k)
        return [layer.get_output(0), layer.get_output(1)]

    inputs = [torch.ones(2), torch.tensor(3, dtype=torch.int32)]
    _, network = network_of(build, inputs)
    with pytest.raises(NetworkEvaluationError, match="k is 3, the axis has 2"):
        reference.run(network, inputs)
