"""Quantization and its inverse: rounding, saturation, scales for a tensor, a channel, a block."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from builder.engine import capabilities
from builder.engine.flavor import trt
from networks import closely, constant, evaluate, exactly


def test_quantization_rounds_ties_to_even_and_saturates():
    x = torch.tensor([[-100.0, -0.75, -0.25, 0.25, 0.75, 1.25, 63.4, 100.0]])

    def build(net, x):
        scale = constant(net, 0.5)
        quantized = net.add_quantize(x, scale, trt.int8).get_output(0)
        return [
            quantized,
            net.add_dequantize(quantized, scale, trt.float32).get_output(0),
        ]

    quantized, back = evaluate(
        build, x, compiled=capabilities.current().has_int64
    )  # 8.6 has no INT8 output
    expected = torch.tensor([[-128, -2, 0, 0, 2, 2, 127, 127]], dtype=torch.int8)
    exactly(quantized, expected)
    exactly(back, expected.float() / 2)


@pytest.mark.parametrize("axis", [0, 1])
def test_quantization_per_channel(axis):
    w = torch.randn(3, 4) * 4
    scale = torch.tensor([0.5, 0.1, 0.25, 1.0])[: w.shape[axis]]
    wide = scale.reshape(-1, 1) if axis == 0 else scale

    def build(net, x):
        scales = constant(net, scale)
        quantized = net.add_quantize(constant(net, w), scales, trt.int8)
        back = net.add_dequantize(quantized.get_output(0), scales, trt.float32)
        quantized.axis = back.axis = axis
        return net.add_elementwise(x, back.get_output(0), trt.ElementWiseOperation.SUM)

    expected = np.clip(np.round((w / wide).numpy()), -128, 127) * wide.numpy()
    # 8.6 takes the pair out where the only reader of a constant is a sum, and adds the constant
    # unrounded
    closely(
        evaluate(build, torch.zeros(3, 4), ran=capabilities.current().has_int64),
        expected,
    )


def test_fp8_quantization_saturates_at_448():
    if not capabilities.current().has_fp8:
        pytest.skip("this TensorRT has no FP8")
    x = torch.tensor([1000.0, -1000.0, 1.06, 0.4, 448.0])

    def build(net, x):
        scale = constant(net, 1.0)
        return net.add_dequantize(
            net.add_quantize(x, scale, trt.fp8).get_output(0), scale, trt.float32
        )

    exactly(evaluate(build, x), [448.0, -448.0, 1.0, 0.40625, 448.0])


def test_tensorrt_compiles_a_quantized_matrix_product():
    x, w = torch.randn(16, 32), torch.randn(32, 32)

    def build(net, x):
        scale = constant(net, 0.05)
        pairs = []
        for tensor in (x, constant(net, w)):
            quantized = net.add_quantize(tensor, scale, trt.int8).get_output(0)
            pairs.append(
                net.add_dequantize(quantized, scale, trt.float32).get_output(0)
            )
        return net.add_matrix_multiply(
            pairs[0], trt.MatrixOperation.NONE, pairs[1], trt.MatrixOperation.NONE
        )

    def rounded(t):
        return np.clip(np.round(t.double().numpy() / 0.05), -128, 127) * 0.05

    closely(
        evaluate(build, x),
        (rounded(x) @ rounded(w)).astype(np.float32),
        rtol=1e-4,
        atol=1e-4,
    )


def test_int4_weights_with_block_scales():
    values = torch.arange(-8, 8, dtype=torch.int32).repeat(4).reshape(32, 2)
    pairs = values.reshape(-1, 2)
    packed = (((pairs[:, 1] & 15) << 4) | (pairs[:, 0] & 15)).to(torch.uint8)
    scales = torch.tensor([[0.5, 1.0], [2.0, 0.25]])

    def build(net, x):
        raw = trt.Weights(trt.DataType.INT4, packed.data_ptr(), 64)
        quantized = net.add_constant((32, 2), raw).get_output(0)
        wide = net.add_dequantize(
            quantized, constant(net, scales), trt.float32
        ).get_output(0)
        return net.add_matrix_multiply(
            x, trt.MatrixOperation.NONE, wide, trt.MatrixOperation.NONE
        )

    expected = values.double().numpy() * np.repeat(scales.double().numpy(), 16, axis=0)
    x = torch.eye(32)
    closely(evaluate(build, x), expected.astype(np.float32))
