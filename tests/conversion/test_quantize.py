"""Fake quantisation against torch: zero points, narrow ranges, one scale or one a channel, static or computed.

The answers are multiples of the scale: equal to a few ulp, or off by a whole step.
"""

from __future__ import annotations

import pytest
import torch

from tests.conversion.harness import check

RANGES = [(0, -128, 127), (0, -127, 127), (3, -128, 127), (-5, -127, 127), (128, 0, 255), (0, 0, 15), (7, 0, 15)]


@pytest.mark.parametrize(("zero", "low", "high"), RANGES)
def test_one_scale(zero: int, low: int, high: int) -> None:
    x = torch.randn(2, 3, 4, 5) * 6
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.0375, zero, low, high), x, dynamic={0: {0: "n"}})
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.7, zero, low, high), x.half(), compile=False)


@pytest.mark.parametrize(("zero", "low", "high"), RANGES)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_scale_for_each_channel(axis: int, zero: int, low: int, high: int) -> None:
    x = torch.randn(2, 3, 4, 5) * 6
    scale = torch.rand(x.shape[axis]) + 0.01
    zeros = torch.full((x.shape[axis],), zero, dtype=torch.int32)
    if zero:
        zeros[0] = 0
    check(lambda x: torch.fake_quantize_per_channel_affine(x, scale, zeros, axis % 4, low, high), x, compile=axis == 1)


@pytest.mark.parametrize(("zero", "low", "high"), RANGES)
def test_qparams_as_tensors(zero: int, low: int, high: int) -> None:
    x, scale, point = torch.randn(2, 3, 4) * 6, torch.tensor([0.0375]), torch.tensor([zero], dtype=torch.int32)
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, scale, point, low, high), x, compile=False)
    check(lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s, z, low, high), x, scale, point)


def test_ties_go_to_even() -> None:
    x = torch.arange(-8, 8) * 0.25
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 0, -128, 127), x)
    check(lambda x: torch.fake_quantize_per_tensor_affine(x, 0.5, 1, -128, 127), x)
