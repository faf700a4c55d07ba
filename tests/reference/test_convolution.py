"""Convolution, deconvolution and pooling against sums written out window by window, from
PaddingMode's formulas.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from builder.engine import capabilities
from builder.engine.flavor import trt
from networks import closely, constant, evaluate, exactly, held, weights

MODES = ["EXPLICIT_ROUND_DOWN", "EXPLICIT_ROUND_UP", "SAME_UPPER", "SAME_LOWER"]
RANDOM = np.random.default_rng(0)


def geometry(mode, length, size, stride, before, after):
    """(output length, padding before) of PaddingMode's documentation; `size` is dilated."""
    if mode.startswith("SAME"):
        total = max((length - 1) // stride * stride + size - length, 0)
        before = total // 2 if mode == "SAME_UPPER" else total - total // 2
        return math.ceil(length / stride), before
    rounded = math.ceil if mode == "EXPLICIT_ROUND_UP" else math.floor
    return rounded((length + before + after - size) / stride) + 1, before


def naive_convolution(x, w, bias, stride, dilation, groups, mode, pre, post):
    space = x.shape[2:]
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:], strict=True)]
    shapes = [
        geometry(mode, *args)
        for args in zip(space, reach, stride, pre, post, strict=True)
    ]
    out = np.zeros((x.shape[0], w.shape[0], *(n for n, _ in shapes)), np.float64)
    per_group = w.shape[0] // groups
    for n, k, *position in itertools.product(*map(range, out.shape)):
        total = bias[k]
        for c, *tap in itertools.product(range(w.shape[1]), *map(range, w.shape[2:])):
            at = [
                p * s + t * d - b
                for p, s, t, d, (_, b) in zip(
                    position, stride, tap, dilation, shapes, strict=True
                )
            ]
            if all(0 <= a < m for a, m in zip(at, space, strict=True)):
                total += x[(n, k // per_group * w.shape[1] + c, *at)] * w[(k, c, *tap)]
        out[(n, k, *position)] = total
    return out.astype(np.float32)


def with_window(layer, stride, dilation, groups, pre, post, mode):
    layer.stride_nd, layer.dilation_nd, layer.num_groups = stride, dilation, groups
    layer.pre_padding, layer.post_padding = pre, post
    layer.padding_mode = getattr(trt.PaddingMode, mode)
    return layer


SETTINGS = "shape, kernel, stride, dilation, groups, pre, post"
CONVOLUTIONS = [
    ((1, 2, 5, 6), (3, 2, 3, 2), (2, 1), (1, 2), 1, (1, 0), (0, 2)),
    ((2, 4, 4, 5), (4, 1, 2, 3), (1, 3), (2, 1), 4, (2, 1), (1, 1)),
    ((1, 4, 7, 3), (2, 2, 1, 1), (3, 2), (1, 1), 2, (0, 0), (0, 0)),
    ((1, 1, 3, 4, 3), (2, 1, 2, 2, 3), (1, 2, 1), (1, 1, 1), 1, (1, 0, 1), (0, 1, 1)),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(SETTINGS, CONVOLUTIONS)
def test_convolution(mode, shape, kernel, stride, dilation, groups, pre, post):
    x, w, bias = (
        RANDOM.standard_normal(s).astype(np.float32)
        for s in (shape, kernel, kernel[:1])
    )

    def build(net, t):
        layer = net.add_convolution_nd(
            t, kernel[0], kernel[2:], weights(w), weights(bias)
        )
        return with_window(layer, stride, dilation, groups, pre, post, mode)

    expected = naive_convolution(x, w, bias, stride, dilation, groups, mode, pre, post)
    closely(evaluate(build, torch.from_numpy(x)), expected, rtol=1e-5, atol=1e-5)


def test_convolution_reads_kernel_and_bias_from_inputs():
    x, w, bias = torch.randn(1, 2, 4, 4), torch.randn(3, 2, 3, 3), torch.randn(3)

    def build(net, t, kernel):
        layer = net.add_convolution_nd(t, 3, (3, 3), trt.Weights())
        layer.set_input(1, kernel)
        layer.set_input(2, constant(net, bias))
        return layer

    expected = naive_convolution(
        x.numpy(), w.numpy(), bias.numpy(), (1, 1), (1, 1), 1, MODES[0], (0, 0), (0, 0)
    )
    closely(evaluate(build, x, w), expected, rtol=1e-5, atol=1e-5)


def test_float16_convolution_accumulates_in_float32():
    """4096 ones times one: a float16 accumulator would stop at 2048."""
    x = torch.ones(1, 4096, 1, 1, dtype=torch.float16)
    w = np.ones((1, 4096, 1, 1), np.float16)
    result = evaluate(lambda net, t: net.add_convolution_nd(t, 1, (1, 1), w), x)
    exactly(result, torch.full((1, 1, 1, 1), 4096.0, dtype=torch.float16))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_kernels_of_reduced_precision_are_read_back(dtype):
    x, w = torch.randn(1, 2, 3, 3).to(dtype), torch.randn(2, 2, 3, 3).to(dtype)
    build = lambda net, t: net.add_convolution_nd(t, 2, (3, 3), held(w))  # noqa: E731
    expected = (x.double() * w.double()).sum((1, 2, 3))[None, :, None, None].to(dtype)
    torch.testing.assert_close(evaluate(build, x), expected, rtol=1e-2, atol=1e-2)


def naive_deconvolution(x, w, bias, stride, dilation, groups, mode, pre, post):
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:], strict=True)]
    if mode.startswith("SAME"):
        totals = [max(r - s, 0) for r, s in zip(reach, stride, strict=True)]
        pre = [t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in totals]
        post = [t - p for t, p in zip(totals, pre, strict=True)]
    lengths = [
        (n - 1) * s + r - b - a
        for n, s, r, b, a in zip(x.shape[2:], stride, reach, pre, post, strict=True)
    ]
    out = np.zeros((x.shape[0], w.shape[1] * groups, *lengths)) + bias.reshape(
        -1, *[1] * len(lengths)
    )
    for n, c, *position in itertools.product(*map(range, x.shape)):
        group = c // (x.shape[1] // groups)
        for k, *tap in itertools.product(range(w.shape[1]), *map(range, w.shape[2:])):
            at = [
                p * s + t * d - b
                for p, s, t, d, b in zip(
                    position, stride, tap, dilation, pre, strict=True
                )
            ]
            if all(0 <= a < m for a, m in zip(at, lengths, strict=True)):
                out[(n, group * w.shape[1] + k, *at)] += (
                    x[(n, c, *position)] * w[(c, k, *tap)]
                )
    return out.astype(np.float32)


DECONVOLUTIONS = [
    ((1, 2, 3, 4), (2, 3, 3, 2), (2, 1), (1, 1), 1, (1, 0), (0, 1)),
    ((1, 4, 3, 3), (4, 1, 2, 3), (3, 2), (1, 1), 2, (0, 1), (1, 0)),
    ((1, 1, 2, 3, 2), (1, 2, 2, 2, 3), (1, 2, 2), (1, 1, 1), 1, (0, 1, 1), (1, 0, 1)),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(SETTINGS, DECONVOLUTIONS)
def test_deconvolution(mode, shape, kernel, stride, dilation, groups, pre, post):
    maps = kernel[1] * groups
    x, w, bias = (
        RANDOM.standard_normal(s).astype(np.float32) for s in (shape, kernel, (maps,))
    )

    def build(net, t):
        layer = net.add_deconvolution_nd(t, maps, kernel[2:], weights(w), weights(bias))
        return with_window(layer, stride, dilation, groups, pre, post, mode)

    expected = naive_deconvolution(
        x, w, bias, stride, dilation, groups, mode, pre, post
    )
    closely(evaluate(build, torch.from_numpy(x)), expected, rtol=1e-5, atol=1e-5)


def naive_pooling(x, kind, window, stride, mode, pre, post, excludes, blend):
    space = x.shape[2:]
    shapes = [
        geometry(mode, *args)
        for args in zip(space, window, stride, pre, post, strict=True)
    ]
    if mode.startswith("SAME"):
        totals = [
            max((n - 1) // s * s + w - n, 0)
            for n, s, w in zip(space, stride, window, strict=True)
        ]
        pre = [b for _, b in shapes]
        post = [t - b for t, b in zip(totals, pre, strict=True)]
    out = np.zeros((*x.shape[:2], *(n for n, _ in shapes)))
    for n, c, *position in itertools.product(*map(range, out.shape)):
        seen, padded = [], 0
        for tap in itertools.product(*map(range, window)):
            at = [
                p * s + t - b
                for p, s, t, b in zip(position, stride, tap, pre, strict=True)
            ]
            if all(0 <= a < m for a, m in zip(at, space, strict=True)):
                seen.append(x[(n, c, *at)])
            padded += all(
                -b <= a < m + e for a, m, b, e in zip(at, space, pre, post, strict=True)
            )
        average = sum(seen) / (len(seen) if excludes else padded)
        out[(n, c, *position)] = {
            "MAX": max(seen),
            "AVERAGE": average,
            "MAX_AVERAGE_BLEND": (1 - blend) * max(seen) + blend * average,
        }[kind]
    return out.astype(np.float32)


POOLINGS = [
    ((1, 2, 6, 7), (3, 2), (2, 2), (1, 0), (0, 1)),
    ((2, 1, 5, 6), (3, 3), (2, 3), (1, 1), (1, 1)),
    ((1, 1, 4, 5, 6), (2, 3, 2), (1, 2, 2), (0, 1, 1), (1, 1, 0)),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["MAX", "AVERAGE", "MAX_AVERAGE_BLEND"])
@pytest.mark.parametrize("excludes", [True, False])
@pytest.mark.parametrize(("shape", "window", "stride", "pre", "post"), POOLINGS)
def test_pooling(mode, kind, excludes, shape, window, stride, pre, post):
    # below zero, so that padding with zeros would show
    x = (RANDOM.standard_normal(shape) - 3).astype(np.float32)

    def build(net, t):
        layer = net.add_pooling_nd(t, getattr(trt.PoolingType, kind), window)
        layer.stride_nd, layer.padding_mode = stride, getattr(trt.PaddingMode, mode)
        layer.pre_padding, layer.post_padding = pre, post
        layer.average_count_excludes_padding, layer.blend_factor = excludes, 0.25
        return layer

    expected = naive_pooling(x, kind, window, stride, mode, pre, post, excludes, 0.25)
    # in 8.6, so nothing is converted to it
    otherwise = mode == "EXPLICIT_ROUND_UP" and kind != "MAX" and not excludes
    ran = capabilities.current().has_int64 or not otherwise
    closely(evaluate(build, torch.from_numpy(x), ran=ran), expected, atol=2e-6)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("EXPLICIT_ROUND_DOWN", 5),
        ("EXPLICIT_ROUND_UP", 5),
        ("SAME_UPPER", 3),
        ("SAME_LOWER", 3),
    ],
)
def test_pooled_sizes_match_the_documented_example(mode, expected):
    """I = 6, B = 3, A = 2, S = 2, F = 3 of PaddingMode's documentation."""

    def build(net, t):
        layer = net.add_pooling_nd(t, trt.PoolingType.MAX, (3, 3))
        layer.stride_nd, layer.padding_mode = (2, 2), getattr(trt.PaddingMode, mode)
        layer.pre_padding, layer.post_padding = (3, 3), (2, 2)
        return layer

    # the maximum of padding alone is not documented
    pooled = evaluate(build, torch.zeros(1, 1, 6, 6), ran=False)
    assert pooled.shape[2:] == (expected, expected)
