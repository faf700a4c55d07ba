"""Convolutions against torch.

Tolerance: a sum of n products in another order differs by about n ulp of the largest term; with
kernels of up to 100 terms of size 1 that is 100 * 6e-8, so 1e-5.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, dynamic_axes

TOLERANCE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
SPATIAL = {1: (9,), 2: (9, 7), 3: (5, 6, 7)}
SETTINGS: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 1},
    {"dilation": 2, "padding": 2, "bias": False},
    {"groups": 2, "padding": "same"},
    {"groups": 4, "padding": "valid", "stride": 3},
    {"padding": "same", "dilation": 2},
]
TRANSPOSED: list[dict[str, Any]] = [
    {},
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"stride": 3, "output_padding": 2},
    {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2},
    {"dilation": 2, "padding": 1, "bias": False},
    {"stride": 2, "dilation": 2, "padding": 1, "output_padding": 1},
]
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
DECONVOLUTIONS = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("settings", SETTINGS)
def test_convolution_settings(axes: int, settings: dict[str, Any]) -> None:
    module = CONVOLUTIONS[axes](4, 8, 3, **settings)
    spatial = SPATIAL[axes]
    check(module, torch.randn(2, 4, *spatial), **TOLERANCE, compile=axes != 2)
    spans = {f"s{a}": (5, n, 2 * n) for a, n in enumerate(spatial)}
    larger = torch.randn(3, 4, *(2 * n for n in spatial))
    smaller = torch.randn(1, 4, *(5 for _ in spatial))
    check(
        module,
        torch.randn(2, 4, *spatial),
        dynamic=dynamic_axes(axes),
        spans=spans,
        more=[(larger,), (smaller,)],
        **TOLERANCE,
        compile=axes == 2,
    )


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("settings", TRANSPOSED)
def test_transposed_convolution_settings(axes: int, settings: dict[str, Any]) -> None:
    module = DECONVOLUTIONS[axes](4, 6, 3, **settings)
    spatial = SPATIAL[axes]
    check(module, torch.randn(2, 4, *spatial), **TOLERANCE, compile=axes != 2)
    smaller = torch.randn(1, 4, *(2 for _ in spatial))
    check(
        module,
        torch.randn(2, 4, *spatial),
        dynamic=dynamic_axes(axes),
        more=[(smaller,)],
        **TOLERANCE,
        compile=axes == 2,
    )


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_input_without_batch_axis(axes: int) -> None:
    check(
        CONVOLUTIONS[axes](4, 8, 3),
        torch.randn(4, *SPATIAL[axes]),
        trace=True,
        **TOLERANCE,
        compile=False,
    )
    check(
        DECONVOLUTIONS[axes](4, 8, 3),
        torch.randn(4, *SPATIAL[axes]),
        trace=True,
        **TOLERANCE,
        compile=False,
    )


@pytest.mark.parametrize("axes", [1, 2])
def test_weight_and_bias_may_be_tensors(axes: int) -> None:
    convolution = {1: F.conv1d, 2: F.conv2d}[axes]
    window = (3,) * axes
    inputs = (
        torch.randn(2, 4, *SPATIAL[axes]),
        torch.randn(8, 4, *window),
        torch.randn(8),
    )
    check(lambda x, w: convolution(x, w), *inputs[:2], **TOLERANCE)
    check(lambda x, w, b: convolution(x, w, b), *inputs, **TOLERANCE)
    transposed = {1: F.conv_transpose1d, 2: F.conv_transpose2d}[axes]
    check(
        lambda x, w, b: transposed(x, w, b, 2, 1),
        inputs[0],
        torch.randn(4, 8, *window),
        inputs[2],
        **TOLERANCE,
    )


def test_half_precision() -> None:
    module = nn.Conv2d(4, 8, 3).half()
    check(module, torch.randn(1, 4, 8, 8).half(), rtol=4e-3, atol=4e-3)


def test_a_window_of_several_sizes() -> None:
    module = nn.Conv2d(4, 8, (1, 5), stride=(2, 1), padding=(0, 2), dilation=(1, 2))
    check(module, torch.randn(1, 4, 7, 12), **TOLERANCE)


@pytest.mark.parametrize(
    "schema",
    [
        "aten::_convolution(%x, %w, %n, %i, %i, %i, %f, %z, %one, %f, %f, %f)",
        "aten::_convolution(%x, %w, %n, %i, %i, %i, %f, %z, %one, %f, %f, %f, %f)",
        "aten::convolution(%x, %w, %n, %i, %i, %i, %f, %z, %one)",
    ],
)
def test_each_general_overload(schema: str) -> None:
    graph = f"""
    graph(%x : Tensor, %w : Tensor):
      %n : NoneType = prim::Constant()
      %i : int[] = prim::Constant[value=[1, 1]]()
      %z : int[] = prim::Constant[value=[0, 0]]()
      %one : int = prim::Constant[value=1]()
      %f : bool = prim::Constant[value=0]()
      %r : Tensor = {schema}
      return (%r)"""
    check(
        graph,
        torch.randn(1, 2, 5, 5),
        params=[torch.randn(3, 2, 3, 3)],
        **TOLERANCE,
        compile=False,
    )


def test_dilated_transposed_convolution_with_tensor_weight() -> None:
    x, weight = torch.randn(2, 4, 7, 7), torch.randn(4, 6, 3, 3)
    check(lambda x, w: F.conv_transpose2d(x, w, dilation=2), x, weight, **TOLERANCE)
    with pytest.raises(UnsupportedOperators, match="stride and dilation"):
        check(lambda x, w: F.conv_transpose2d(x, w, stride=2, dilation=2), x, weight)


class Compared(nn.Module):
    """A branch on the size of a dilated transposed convolution, which is x.size(2) + 4."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = F.conv_transpose2d(x, weight, dilation=2)
        return y * 2 if y.size(2) == x.size(2) + 2 else y + 1


def test_size_of_a_dilated_transposed_convolution() -> None:
    x, weight = torch.randn(2, 3, 5, 6), torch.randn(3, 4, 3, 3)
    more = [(torch.randn(3, 3, 7, 6), weight)]
    check(Compared(), x, weight, dynamic={0: {0: "n", 2: "h"}}, more=more, **TOLERANCE)


def test_integers_are_refused_with_a_reason() -> None:
    with pytest.raises(UnsupportedOperators, match="floating tensors only"):
        check(
            lambda x: F.conv1d(x, torch.ones(1, 2, 3, dtype=torch.int64)),
            torch.ones(1, 2, 8, dtype=torch.int64),
        )
    with pytest.raises(UnsupportedOperators, match="floating tensors only"):
        check(lambda x: F.avg_pool1d(x, 2), torch.ones(1, 2, 8, dtype=torch.int64))
