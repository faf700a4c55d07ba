"""Attention, rotary embedding, caches, quantisation and non-maximum suppression."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from builder import reference
from builder.engine.flavour import trt
from builder.errors import NetworkEvaluationError
from networks import closely, constant, evaluate, exactly, network_of

SOFTMAX, KIND = trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind


def attention_formula(q, k, v, allowed=None, bias=0.0, softmax=True):
    """Head by head; query head h belongs to key head h // (Hq / Hkv)."""
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            scores = q[b, h].astype(np.float64) @ k[b, g].astype(np.float64).T
            scores = scores + np.broadcast_to(bias, (q.shape[0], q.shape[1], *scores.shape))[b, h]
            if allowed is not None:
                scores = np.where(
                    np.broadcast_to(allowed, (q.shape[0], q.shape[1], *scores.shape))[b, h], scores, -np.inf
                )
            if softmax:
                scores = np.exp(scores - scores.max(-1, keepdims=True))
                scores = scores / scores.sum(-1, keepdims=True)
            out[b, h] = scores @ v[b, g]
    return out.astype(np.float32)


def qkv(queries=5, keys=6, heads=4, groups=2):
    random = np.random.default_rng(5)
    shapes = ((2, heads, queries, 8), (2, groups, keys, 8), (2, groups, keys, 8))
    return [torch.from_numpy(random.standard_normal(s).astype(np.float32)) for s in shapes]


def attended(kind=KIND.NONE, mask=None, norm=SOFTMAX):
    def build(net, q, k, v, *masks):
        layer = net.add_attention_v2(q, k, v, norm, kind)
        layer.decomposable = True
        if masks:
            layer.mask = masks[0]
        return layer.get_output(0)

    return build


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_attention_with_shared_heads_and_no_scale(groups):
    inputs = qkv(groups=groups)
    closely(evaluate(attended(), *inputs), attention_formula(*(t.numpy() for t in inputs)), atol=3e-6)


@pytest.mark.parametrize(("kind", "shift"), [(KIND.UPPER_LEFT, 0), (KIND.LOWER_RIGHT, 1)])
def test_causal_attention_from_either_corner(kind, shift):
    inputs = qkv()
    allowed = np.arange(6)[None, :] <= np.arange(5)[:, None] + shift
    expected = attention_formula(*(t.numpy() for t in inputs), allowed)
    closely(evaluate(attended(kind), *inputs), expected, atol=3e-6)


def test_masks_allow_or_add():
    inputs = qkv()
    allowed = torch.rand(2, 1, 5, 6) < 0.6
    allowed[..., 0] = True
    expected = attention_formula(*(t.numpy() for t in inputs), allowed.numpy())
    closely(evaluate(attended(), *inputs, allowed), expected, atol=3e-6)
    bias = torch.randn(1, 4, 5, 6)
    expected = attention_formula(*(t.numpy() for t in inputs), bias=bias.numpy().astype(np.float64))
    closely(evaluate(attended(), *inputs, bias), expected, atol=3e-6)


def test_attention_without_normalisation():
    inputs = qkv()
    expected = attention_formula(*(t.numpy() for t in inputs), softmax=False)
    result = evaluate(attended(norm=trt.AttentionNormalizationOp.NONE), *inputs)
    closely(result, expected, rtol=1e-5, atol=1e-4)


def test_tensorrt_compiles_attention_in_half_precision():
    inputs = [t.half() for t in qkv(8, 8, 4, 4)]
    expected = attention_formula(*(t.float().numpy() for t in inputs))
    torch.testing.assert_close(evaluate(attended(), *inputs).float(), torch.from_numpy(expected), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("turned", [0, 4])
@pytest.mark.parametrize("indexed", [False, True])
def test_rotary_embedding(interleaved, turned, indexed):
    x = torch.randn(2, 3, 5, 8)
    width = (turned or 8) // 2
    angles = torch.rand(9, width) if indexed else torch.rand(2, 5, width)
    positions = torch.randint(0, 9, (2, 5))
    expected = x.double().numpy().copy()
    for b, n, s, i in np.ndindex(2, 3, 5, width):
        angle = float(angles[positions[b, s], i] if indexed else angles[b, s, i])
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + width)
        p, q = x[b, n, s, first].item(), x[b, n, s, second].item()
        expected[b, n, s, first] = p * np.cos(angle) - q * np.sin(angle)
        expected[b, n, s, second] = p * np.sin(angle) + q * np.cos(angle)

    def build(net, x, cos, sin, positions):
        layer = net.add_rotary_embedding(x, cos, sin, interleaved, turned)
        if indexed:
            layer.set_input(3, positions)
        return layer

    result = evaluate(build, x, angles.cos(), angles.sin(), positions)
    closely(result, expected.astype(np.float32))


def test_a_cache_is_written_from_each_items_place_on():
    cache, update = torch.zeros(2, 1, 4, 2), torch.ones(2, 1, 2, 2)

    def build(net, cache, update, starts):
        return net.add_kv_cache_update(cache, update, starts, trt.KVCacheMode.LINEAR)

    result = evaluate(build, cache, update, torch.tensor([0, 2], dtype=torch.int32))
    exactly(result[:, 0, :, 0], [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])


def test_quantisation_rounds_ties_to_even_and_saturates():
    x = torch.tensor([[-100.0, -0.75, -0.25, 0.25, 0.75, 1.25, 63.4, 100.0]])

    def build(net, x):
        scale = constant(net, 0.5)
        quantised = net.add_quantize(x, scale, trt.int8).get_output(0)
        return [quantised, net.add_dequantize(quantised, scale, trt.float32).get_output(0)]

    quantised, back = evaluate(build, x)
    expected = torch.tensor([[-128, -2, 0, 0, 2, 2, 127, 127]], dtype=torch.int8)
    exactly(quantised, expected)
    exactly(back, expected.float() / 2)


@pytest.mark.parametrize("axis", [0, 1])
def test_quantisation_of_each_channel(axis):
    w = torch.randn(3, 4) * 4
    scale = torch.tensor([0.5, 0.1, 0.25, 1.0])[: w.shape[axis]]
    wide = scale.reshape(-1, 1) if axis == 0 else scale

    def build(net, x):
        scales = constant(net, scale)
        quantised = net.add_quantize(constant(net, w), scales, trt.int8)
        back = net.add_dequantize(quantised.get_output(0), scales, trt.float32)
        quantised.axis = back.axis = axis
        return net.add_elementwise(x, back.get_output(0), trt.ElementWiseOperation.SUM)

    expected = np.clip(np.round((w / wide).numpy()), -128, 127) * wide.numpy()
    closely(evaluate(build, torch.zeros(3, 4)), expected)


def test_quantisation_to_eight_bit_floats_saturates_at_448():
    x = torch.tensor([1000.0, -1000.0, 1.06, 0.4, 448.0])

    def build(net, x):
        scale = constant(net, 1.0)
        return net.add_dequantize(net.add_quantize(x, scale, trt.fp8).get_output(0), scale, trt.float32)

    exactly(evaluate(build, x), [448.0, -448.0, 1.0, 0.40625, 448.0])


def test_tensorrt_compiles_a_quantised_product():
    x, w = torch.randn(16, 32), torch.randn(32, 32)

    def build(net, x):
        scale = constant(net, 0.05)
        pairs = []
        for tensor in (x, constant(net, w)):
            quantised = net.add_quantize(tensor, scale, trt.int8).get_output(0)
            pairs.append(net.add_dequantize(quantised, scale, trt.float32).get_output(0))
        return net.add_matrix_multiply(pairs[0], trt.MatrixOperation.NONE, pairs[1], trt.MatrixOperation.NONE)

    def rounded(t):
        return np.clip(np.round(t.double().numpy() / 0.05), -128, 127) * 0.05

    closely(evaluate(build, x), (rounded(x) @ rounded(w)).astype(np.float32), rtol=1e-4, atol=1e-4)


def test_four_bit_weights_with_a_scale_for_each_block():
    values = torch.arange(-8, 8, dtype=torch.int32).repeat(4).reshape(32, 2)
    pairs = values.reshape(-1, 2)
    packed = (((pairs[:, 1] & 15) << 4) | (pairs[:, 0] & 15)).to(torch.uint8)
    scales = torch.tensor([[0.5, 1.0], [2.0, 0.25]])

    def build(net, x):
        raw = trt.Weights(trt.DataType.INT4, packed.data_ptr(), 64)
        quantised = net.add_constant((32, 2), raw).get_output(0)
        wide = net.add_dequantize(quantised, constant(net, scales), trt.float32).get_output(0)
        return net.add_matrix_multiply(x, trt.MatrixOperation.NONE, wide, trt.MatrixOperation.NONE)

    expected = values.double().numpy() * np.repeat(scales.double().numpy(), 16, axis=0)
    x = torch.eye(32)
    closely(evaluate(build, x), expected.astype(np.float32))


BOXES = torch.tensor(
    [[[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30], [10, 10, 0, 0], [20, 20, 30, 29], [50, 50, 60, 60]]]
)


def suppressed(limit, iou=None, threshold=None, **settings):
    def build(net, boxes, scores):
        layer = net.add_nms(boxes, scores, constant(net, limit, torch.int32))
        for i, value in ((3, iou), (4, threshold)):
            if value is not None:
                layer.set_input(i, constant(net, value))
        for name, value in settings.items():
            setattr(layer, name, value)
        return [layer.get_output(0), layer.get_output(1)]

    # RTX makes the layer but has nothing that runs it, as with non-zero
    return lambda *inputs: evaluate(build, *inputs, compiled=False)


def test_suppression_drops_overlapping_boxes_of_the_same_class_only():
    scores = torch.zeros(1, 6, 2)
    scores[0, :, 0] = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.75, 0.1])
    scores[0, 1, 1] = 0.85
    rows, count = suppressed(6, 0.5, 0.2)(BOXES, scores)
    exactly(rows, torch.tensor([[0, 0, 0], [0, 1, 1], [0, 0, 4]], dtype=torch.int32))
    exactly(count, torch.tensor(3, dtype=torch.int32))


def test_suppression_keeps_at_most_so_many_of_a_class_and_considers_at_most_so_many():
    scores = torch.tensor([0.9, 0.1, 0.8, 0.2, 0.3, 0.7]).reshape(1, 6, 1)
    rows, _ = suppressed(2, 0.5, 0.0)(BOXES, scores)
    exactly(rows[:, 2], torch.tensor([0, 2], dtype=torch.int32))
    rows, count = suppressed(6, 0.5, 0.0, topk_box_limit=1)(BOXES, scores)
    assert rows.tolist() == [[0, 0, 0]] and int(count) == 1


def test_suppression_of_centres_and_sizes_and_of_nothing():
    boxes = torch.tensor([[[5.0, 5, 10, 10], [5, 5, 10, 8], [40, 40, 10, 10]]])
    scores = torch.tensor([0.5, 0.9, 0.4]).reshape(1, 3, 1)
    rows, _ = suppressed(3, 0.5, bounding_box_format=trt.BoundingBoxFormat.CENTER_SIZES)(boxes, scores)
    exactly(rows, torch.tensor([[0, 0, 1], [0, 0, 2]], dtype=torch.int32))
    rows, count = suppressed(3, 0.5, 0.95)(boxes, scores)
    assert rows.shape == (0, 3) and int(count) == 0


def test_packed_attention_is_an_error():
    def build(net, q, k, v, lengths):
        layer = net.add_attention_v2(q, k, v, SOFTMAX, KIND.NONE)
        layer.query_form = trt.AttentionIOForm.PACKED_NHD
        layer.query_lengths = lengths
        return layer.get_output(0)

    q, k, v = qkv(groups=4)
    inputs = [q[0].transpose(0, 1).contiguous(), k[:1], v[:1], torch.tensor([0, 5], dtype=torch.int32)]
    _, network = network_of(build, inputs)
    with pytest.raises(NetworkEvaluationError, match="packed"):
        reference.run(network, inputs)
