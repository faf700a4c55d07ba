"""Layers that move values, such as shuffle, slice, gather, scatter, concatenation and padding."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from builder import reference
from builder.engine import capabilities
from builder.engine.flavor import trt
from builder.errors import NetworkEvaluationError
from networks import constant, evaluate, exactly, network_of
from tests.conversion import test_elementwise

X = torch.arange(24.0).reshape(2, 3, 4)


def shuffled(first=None, dims=None, second=None, placeholder=True):
    def build(net, x):
        layer = net.add_shuffle(x)
        if first:
            layer.first_transpose = first
        if dims is not None:
            layer.reshape_dims = dims
        layer.zero_is_placeholder = placeholder
        if second:
            layer.second_transpose = second
        return layer

    return build


def test_shuffle_transposes_reshapes_and_transposes_in_order():
    expected = X.numpy().transpose(2, 0, 1).reshape(4, 3, 2).transpose(1, 2, 0)
    exactly(evaluate(shuffled((2, 0, 1), (0, 3, -1), (1, 2, 0)), X), expected)


@pytest.mark.parametrize(
    "dims", [(0, -1), (-1,), (0, 0, 0, 1), (4, 0, -1), (2, 1, 3, 4)]
)
def test_reshape_zero_copies_and_minus_one_infers_a_size(dims):
    lengths = [X.shape[i] if n == 0 else n for i, n in enumerate(dims)]
    exactly(evaluate(shuffled(dims=dims), X), X.reshape(lengths))


def test_reshape_zero_is_literal_without_placeholders():
    exactly(
        evaluate(shuffled(dims=(0, 5), placeholder=False), torch.ones(2, 0)),
        torch.ones(0, 5),
    )


def test_scalar_is_reshaped_to_a_vector_and_back():
    exactly(evaluate(shuffled(dims=(1,)), torch.tensor(3.0)), [3.0])
    exactly(evaluate(shuffled(dims=()), torch.tensor([3.0])), 3.0)


def test_second_input_overrides_reshape_dims():
    def build(net, x):
        layer = net.add_shuffle(x)
        layer.first_transpose = (1, 0, 2)
        layer.set_input(1, constant(net, [0, -1]))
        return layer

    exactly(evaluate(build, X), X.permute(1, 0, 2).reshape(3, 8))


def test_reshape_to_a_different_volume_is_an_error():
    def build(net, x):
        layer = net.add_shuffle(x)
        layer.set_input(1, net.add_shape(x).get_output(0))
        layer.set_input(0, net.add_slice(x, (0,), (1,), (1,)).get_output(0))
        return layer

    _, network = network_of(build, [torch.ones(3)], dynamic=True)
    with pytest.raises(NetworkEvaluationError, match="SHUFFLE"):
        reference.run(network, [torch.ones(3)])


def slice_formula(x, start, size, stride, mode, fill=0.0):
    """ISliceLayer's documentation, coordinate by coordinate."""
    out = np.full(size, fill, x.dtype)
    for position in itertools.product(*map(range, size)):
        at = []
        for y, o, s, d in zip(position, start, stride, x.shape, strict=True):
            c = y * s + o
            if mode == "WRAP":
                c %= d
            elif mode == "CLAMP":
                c = min(max(c, 0), d - 1)
            elif mode == "REFLECT" and d > 1:
                c = abs(c) % (2 * d - 2)
                c = 2 * d - 2 - c if c >= d else c
            elif mode == "REFLECT":
                c = 0
            at.append(c)
        if all(0 <= c < d for c, d in zip(at, x.shape, strict=True)):
            out[position] = x[tuple(at)]
    return out


SLICES = [
    ((0, 1, 1), (2, 2, 2), (1, 1, 2), "STRICT_BOUNDS"),
    ((1, 2, 3), (2, 3, 4), (-1, -1, -1), "STRICT_BOUNDS"),
    ((1, 0, 3), (1, 0, 2), (5, 1, -3), "STRICT_BOUNDS"),
    ((1, -4, 2), (3, 9, 3), (1, 1, 2), "WRAP"),
    ((-2, 2, 5), (5, 4, 7), (1, -1, -1), "CLAMP"),
    ((-1, 0, -2), (4, 3, 8), (1, 1, 1), "FILL"),
    ((1, -3, 7), (2, 11, 9), (-1, 1, -2), "REFLECT"),
]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("start", "size", "stride", "mode"), SLICES)
def test_slices(start, size, stride, mode, dynamic):
    def build(net, x):
        layer = (
            net.add_slice(x, (0, 0, 0), (1, 1, 1), (1, 1, 1))
            if dynamic
            else net.add_slice(x, start, size, stride)
        )
        layer.mode = getattr(trt.SampleMode, mode)
        if dynamic:
            for i, values in enumerate((start, size, stride), start=1):
                layer.set_input(i, constant(net, values, torch.int64))
        if mode == "FILL":
            layer.set_input(4, constant(net, 7.5))
        return layer

    result = evaluate(build, X)
    exactly(result, slice_formula(X.numpy(), start, size, stride, mode, 7.5))


@pytest.mark.parametrize("mode", ["WRAP", "CLAMP", "REFLECT", "FILL"])
def test_slice_modes_on_an_axis_of_size_one(mode):
    x = torch.tensor([[3.0], [4.0]])

    def build(net, x):
        layer = net.add_slice(x, (0, -2), (2, 5), (1, 1))
        layer.mode = getattr(trt.SampleMode, mode)
        return layer

    exactly(evaluate(build, x), slice_formula(x.numpy(), (0, -2), (2, 5), (1, 1), mode))


def test_slice_of_some_axes_keeps_the_others():
    def build(net, x):
        layer = net.add_slice(x, (3, 1), (2, 1), (-2, 1))
        layer.axes = (-1, 0)
        return layer

    exactly(evaluate(build, X), X[1:2, :, [3, 1]])


def test_strict_slice_out_of_bounds_is_an_error():
    def build(net, x):
        layer = net.add_slice(x, (0,), (3,), (1,))
        layer.set_input(1, net.add_shape(x).get_output(0))
        return layer

    _, network = network_of(build, [torch.ones(4)], dynamic=True)
    with pytest.raises(NetworkEvaluationError, match=r"coordinates 4\.\.6"):
        reference.run(network, [torch.ones(4)])


def gathered(mode, axis=0, batch=0):
    def build(net, x, i):
        layer = net.add_gather_v2(x, i, getattr(trt.GatherMode, mode))
        layer.axis, layer.num_elementwise_dims = axis, batch
        return layer

    return build


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("indices", [1, [1, 0, 1], [[0, 1], [1, 1]], []])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_gather_along_an_axis(axis, indices, dtype):
    i = torch.tensor(indices, dtype=dtype)
    exactly(
        evaluate(gathered("DEFAULT", axis), X, i), np.take(X.numpy(), i.numpy(), axis)
    )


def test_gather_of_one_index_out_of_bounds_is_zero():
    inputs = [torch.ones(3), torch.tensor(3)]
    _, network = network_of(gathered("DEFAULT"), inputs)
    exactly(reference.run(network, inputs)[0], 0.0)


def test_gather_row_by_row():
    i = torch.tensor([[0, 2, 2], [3, 1, 0]], dtype=torch.int32)
    expected = np.stack([np.take(X.numpy()[n], i.numpy()[n], 1) for n in range(2)])
    exactly(evaluate(gathered("DEFAULT", 2, 1), X, i), expected)


def test_gather_element_by_element():
    i = torch.tensor([[[0, 1, 2, 0]], [[2, 2, 1, 1]]])
    expected = np.take_along_axis(X.numpy(), i.numpy(), 1)
    exactly(evaluate(gathered("ELEMENT", 1), X, i), expected)


@pytest.mark.parametrize("batch", [0, 1])
def test_gather_by_coordinate_tuples(batch):
    i = torch.tensor([[[0, 1], [1, 2]], [[1, 0], [0, 0]]])
    expected = np.zeros((2, 2, *X.shape[batch + 2 :]), np.float32)
    for n, m in itertools.product(range(2), range(2)):
        at = tuple(i[n, m].tolist())
        expected[n, m] = X.numpy()[at] if batch == 0 else X.numpy()[n][at]
    exactly(evaluate(gathered("ND", 0, batch), X, i), expected)


@pytest.mark.parametrize(
    ("mode", "indices"), [("DEFAULT", [-1, 0]), ("ELEMENT", [[[-1] * 4], [[0] * 4]])]
)
def test_negative_gather_indices_require_a_static_axis(mode, indices):
    i = torch.tensor(indices)
    expected = (
        X.index_select(1, torch.tensor([2, 0]))
        if mode == "DEFAULT"
        else X.gather(1, i % 3)
    )
    exactly(evaluate(gathered(mode, 1), X, i), expected)
    _, network = network_of(gathered(mode, 1), [X, i], dynamic=True)
    with pytest.raises(NetworkEvaluationError, match="undefined"):
        reference.run(network, [X, i])


def test_gather_out_of_bounds_returns_zero():
    """IGatherLayer: 'Zero will be stored for OOB access'."""
    exactly(
        evaluate(gathered("DEFAULT", 1), X[:1, :, :1], torch.tensor([1, 3])),
        [[[4.0], [0.0]]],
    )
    exactly(
        evaluate(
            gathered("ELEMENT", 0), torch.tensor([5.0, 6.0]), torch.tensor([7, 1])
        ),
        [0.0, 6.0],
    )
    exactly(
        evaluate(gathered("ND"), torch.tensor([5.0, 6.0]), torch.tensor([[1], [2]])),
        [6.0, 0.0],
    )


def test_scatter_element_by_element():
    data, i = torch.zeros(2, 3), torch.tensor([[2, 0, 1], [1, -1, 0]])
    updates = torch.arange(1.0, 7.0).reshape(2, 3)

    def build(net, data, i, updates):
        layer = net.add_scatter(data, i, updates, trt.ScatterMode.ELEMENT)
        layer.axis = 1
        return layer

    exactly(evaluate(build, data, i, updates), [[2.0, 3.0, 1.0], [6.0, 4.0, 5.0]])


def test_nd_scatter_does_not_modify_its_input():
    data, i = torch.zeros(2, 3, 2), torch.tensor([[0, 2], [1, 0]], dtype=torch.int32)
    updates = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    kept = data.clone()
    expected = np.zeros((2, 3, 2), np.float32)
    expected[0, 2], expected[1, 0] = [1, 2], [3, 4]
    exactly(
        evaluate(
            lambda net, d, i, u: net.add_scatter(d, i, u, trt.ScatterMode.ND),
            data,
            i,
            updates,
        ),
        expected,
    )
    exactly(data, kept)


def test_concatenation_with_an_empty_input():
    parts = [X, X[:, :0], -X[:, :1]]

    def build(net, *tensors):
        layer = net.add_concatenation(tensors)
        layer.axis = 1
        return layer

    exactly(evaluate(build, *parts), np.concatenate([p.numpy() for p in parts], 1))
    exactly(
        evaluate(build, *parts[::2]), np.concatenate([p.numpy() for p in parts[::2]], 1)
    )


def test_squeeze_and_unsqueeze_accept_negative_axes():
    x = torch.ones(1, 2, 1, 3)
    assert evaluate(
        lambda net, x: net.add_squeeze(x, constant(net, [-2])), x
    ).shape == (1, 2, 3)
    assert evaluate(
        lambda net, x: net.add_unsqueeze(x, constant(net, [0, -1])), x
    ).shape == (
        1,
        1,
        2,
        1,
        3,
        1,
    )


def test_shape_returns_int64_sizes_of_dynamic_axes():
    result = evaluate(lambda net, x: net.add_shape(x), torch.ones(2, 5), dynamic=True)
    exactly(result, torch.tensor([2, 5]))


@pytest.mark.parametrize("dtype", test_elementwise.DTYPES)
def test_constants_of_every_dtype(dtype):
    value = torch.tensor([[0, 1, 1]]).to(dtype)
    exactly(evaluate(lambda net, x: [constant(net, value)], torch.ones(1)), value)


def test_scalar_and_int8_constants():
    exactly(
        evaluate(lambda net, x: [constant(net, 2.5)], torch.ones(1)), torch.tensor(2.5)
    )
    # TensorRT compiles those only in front of a dequantization
    value = torch.tensor([-128, 127], dtype=torch.int8)
    if capabilities.current().has_int64:  # 8.6 has none
        exactly(
            evaluate(
                lambda net, x: [constant(net, value)], torch.ones(1), compiled=False
            ),
            value,
        )


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_cumulative_sums(exclusive, backward, axis):
    x = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 40.0]])
    expected = np.zeros((2, 3), np.float32)
    for r, c in itertools.product(range(2), range(3)):
        line, j = (x.numpy()[:, c], r) if axis == 0 else (x.numpy()[r], c)
        before, after = line[: j + 1 - exclusive], line[j + exclusive :]
        expected[r, c] = (after if backward else before).sum()

    def build(net, x):
        where = constant(net, axis, torch.int32)
        return net.add_cumulative(
            x, where, trt.CumulativeOperation.SUM, exclusive, backward
        )

    exactly(evaluate(build, x), expected)


def test_linspace_fills_are_affine_in_their_coordinates():
    """The example of FillOperation::kLINSPACE, then a static one."""

    def build(net, x):
        layer = net.add_fill((1, 1), trt.FillOperation.LINSPACE, trt.float32)
        layer.set_input(0, constant(net, [3, 4]))
        layer.set_input(1, constant(net, 1.0))
        layer.set_input(2, constant(net, [100.0, 10.0]))
        return layer

    exactly(
        evaluate(build, torch.ones(1)),
        [[1.0, 11, 21, 31], [101, 111, 121, 131], [201, 211, 221, 231]],
    )

    def static(net, x):
        layer = net.add_fill((4,), trt.FillOperation.LINSPACE, trt.int64)
        layer.alpha, layer.beta = 5, -2
        return layer

    exactly(evaluate(static, torch.ones(1)), torch.tensor([5, 3, 1, -1]))


def test_random_fill_is_an_error():
    _, network = network_of(
        lambda net, x: net.add_fill(
            (2,), trt.FillOperation.RANDOM_UNIFORM, trt.float32
        ),
        [X],
    )
    with pytest.raises(NetworkEvaluationError, match="random"):
        reference.run(network, [X])


def test_nonzero_returns_indices():
    x = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, -1.0]])
    expected = np.stack(np.nonzero(x.numpy()))
    # RTX makes the layer but has nothing that runs it: "has no runners that implement it"
    # (NVIDIA/TensorRT-RTX#32)
    exactly(
        evaluate(lambda net, x: net.add_non_zero(x), x, compiled=False),
        expected.astype(np.int32),
    )
    exactly(
        evaluate(lambda net, x: net.add_non_zero(x, trt.int64), x, compiled=False),
        expected,
    )


def test_squeeze_without_axes_removes_all_axes_of_size_one():
    assert evaluate(
        lambda net, x: net.add_squeeze(x, None), torch.ones(1, 2, 1)
    ).shape == (2,)


def test_scatter_out_of_bounds_is_an_error():
    def build(net, data, i, updates):
        return net.add_scatter(data, i, updates, trt.ScatterMode.ND)

    inputs = [torch.zeros(2, 3), torch.tensor([[2]]), torch.ones(1, 3)]
    _, network = network_of(build, inputs)
    with pytest.raises(NetworkEvaluationError, match="out of bounds of 2"):
        reference.run(network, inputs)
