"""Attention, rotary embedding and key-value caches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from builder import reference
from builder.engine.flavor import trt
from builder.errors import NetworkEvaluationError
from networks import closely, evaluate, exactly, network_of

if not hasattr(trt, "CausalMaskKind"):
    pytest.skip("this TensorRT has no attention layer", allow_module_level=True)
SOFTMAX, KIND = trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind


def attention_formula(q, k, v, allowed=None, bias=0.0, softmax=True):
    """Attention by head; query head h uses key head h // (Hq / Hkv)."""
    out = np.zeros((*q.shape[:3], v.shape[3]))
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            g = h // (q.shape[1] // k.shape[1])
            scores = q[b, h].astype(np.float64) @ k[b, g].astype(np.float64).T
            scores = (
                scores
                + np.broadcast_to(bias, (q.shape[0], q.shape[1], *scores.shape))[b, h]
            )
            if allowed is not None:
                scores = np.where(
                    np.broadcast_to(allowed, (q.shape[0], q.shape[1], *scores.shape))[
                        b, h
                    ],
                    scores,
                    -np.inf,
                )
            if softmax:
                scores = np.exp(scores - scores.max(-1, keepdims=True))
                scores = scores / scores.sum(-1, keepdims=True)
            out[b, h] = scores @ v[b, g]
    return out.astype(np.float32)


def qkv(queries=5, keys=6, heads=4, groups=2):
    random = np.random.default_rng(5)
    shapes = ((2, heads, queries, 8), (2, groups, keys, 8), (2, groups, keys, 8))
    return [
        torch.from_numpy(random.standard_normal(s).astype(np.float32)) for s in shapes
    ]


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
    closely(
        evaluate(attended(), *inputs),
        attention_formula(*(t.numpy() for t in inputs)),
        atol=3e-6,
    )


@pytest.mark.parametrize(
    ("kind", "shift"), [(KIND.UPPER_LEFT, 0), (KIND.LOWER_RIGHT, 1)]
)
def test_causal_attention_aligned_to_either_corner(kind, shift):
    inputs = qkv()
    allowed = np.arange(6)[None, :] <= np.arange(5)[:, None] + shift
    expected = attention_formula(*(t.numpy() for t in inputs), allowed)
    closely(evaluate(attended(kind), *inputs), expected, atol=3e-6)


def test_boolean_and_additive_masks():
    inputs = qkv()
    allowed = torch.rand(2, 1, 5, 6) < 0.6
    allowed[..., 0] = True
    expected = attention_formula(*(t.numpy() for t in inputs), allowed.numpy())
    closely(evaluate(attended(), *inputs, allowed), expected, atol=3e-6)
    bias = torch.randn(1, 4, 5, 6)
    expected = attention_formula(
        *(t.numpy() for t in inputs), bias=bias.numpy().astype(np.float64)
    )
    closely(evaluate(attended(), *inputs, bias), expected, atol=3e-6)


def test_attention_without_normalization():
    inputs = qkv()
    expected = attention_formula(*(t.numpy() for t in inputs), softmax=False)
    result = evaluate(attended(norm=trt.AttentionNormalizationOp.NONE), *inputs)
    closely(result, expected, rtol=1e-5, atol=1e-4)


def test_tensorrt_compiles_attention_in_half_precision():
    inputs = [t.half() for t in qkv(8, 8, 4, 4)]
    expected = attention_formula(*(t.float().numpy() for t in inputs))
    torch.testing.assert_close(
        evaluate(attended(), *inputs).float(),
        torch.from_numpy(expected),
        rtol=2e-3,
        atol=2e-3,
    )


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


def test_cache_is_written_from_each_start_index():
    cache, update = torch.zeros(2, 1, 4, 2), torch.ones(2, 1, 2, 2)

    def build(net, cache, update, starts):
        return net.add_kv_cache_update(cache, update, starts, trt.KVCacheMode.LINEAR)

    result = evaluate(build, cache, update, torch.tensor([0, 2], dtype=torch.int32))
    exactly(result[:, 0, :, 0], [[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 1.0]])


def test_packed_attention_is_rejected():
    def build(net, q, k, v, lengths):
        layer = net.add_attention_v2(q, k, v, SOFTMAX, KIND.NONE)
        layer.query_form = trt.AttentionIOForm.PACKED_NHD
        layer.query_lengths = lengths
        return layer.get_output(0)

    q, k, v = qkv(groups=4)
    inputs = [
        q[0].transpose(0, 1).contiguous(),
        k[:1],
        v[:1],
        torch.tensor([0, 5], dtype=torch.int32),
    ]
    _, network = network_of(build, inputs)
    with pytest.raises(NetworkEvaluationError, match="packed"):
        reference.run(network, inputs)
