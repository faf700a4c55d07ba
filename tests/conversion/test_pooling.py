"""Pooling against torch: windows that reach beyond the input, divisors, indices, parts of unequal
length.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from builder.engine import capabilities
from tests.conversion.harness import check

NHW = {0: {0: "n", 2: "h", 3: "w"}}
SPANS = {"h": (5, 5, 20), "w": (5, 5, 20)}
SIZES = [(7, 8), (8, 8), (9, 7), (5, 6)]
FAST_SIZES = [
    *SIZES[:2],
    *(pytest.param(size, marks=pytest.mark.slow) for size in SIZES[2:]),
]
AVERAGES: list[tuple[Any, ...]] = [
    (3, 2, 1, False, True),
    (3, 2, 1, True, True),
    (3, 2, 1, True, False),
    (2, 3, 1, True, True),
    (2, 3, 1, True, False),
    (4, 3, 2, True, False),
    ((1, 2), (3, 2), 0, True, True),
    (3, 2, 0, True, True, 5),
    (3, 1, 1, False, False, 2),
    (2, 3, 1, True, True, 7),
]
MAXIMA: list[tuple[Any, ...]] = [
    (3, 2, 1, 1, False),
    (3, 2, 1, 1, True),
    (2, 3, 1, 1, True),
    ((1, 2), (3, 1), 0, 1, True),
    (2, 2, 0, 2, False),
    (3, 2, 1, 2, True),
]
OUTPUTS: list[Any] = [1, 2, 3, 4, (None, 3), (5, 1)]


def others() -> list[tuple[torch.Tensor, ...]]:
    return [
        (torch.randn(1, 3, 5, 9),),
        (torch.randn(3, 3, 6, 6),),
        (torch.randn(4, 3, 20, 20),),
    ]


@pytest.mark.parametrize("size", FAST_SIZES)
@pytest.mark.parametrize("settings", AVERAGES)
def test_average_pooling_divisor_matches_torch(
    settings: tuple[Any, ...], size: tuple[int, int]
) -> None:
    x = torch.randn(2, 3, *size)
    check(lambda x: F.avg_pool2d(x, *settings), x, compile=False)
    check(
        lambda x: F.avg_pool2d(x, *settings),
        x,
        dynamic=NHW,
        spans=SPANS,
        more=others(),
        compile=size == SIZES[0],
    )


@pytest.mark.parametrize("size", FAST_SIZES)
@pytest.mark.parametrize("indices", [False, True])
@pytest.mark.parametrize("settings", MAXIMA)
def test_max_pooling_values_and_indices(
    settings: tuple[Any, ...], indices: bool, size: tuple[int, int]
) -> None:
    x = torch.randn(2, 3, *size)

    def pool(x: torch.Tensor) -> Any:
        return F.max_pool2d(x, *settings, return_indices=indices)

    check(pool, x, compile=False, rtol=0, atol=0)
    check(
        pool,
        x,
        dynamic=NHW,
        spans=SPANS,
        more=others(),
        compile=size == SIZES[0],
        rtol=0,
        atol=0,
    )


def test_index_is_that_of_the_first_maximum() -> None:
    x = torch.randint(-2, 2, (1, 2, 8, 8)).float()
    check(lambda x: F.max_pool2d(x, 3, 1, 1, return_indices=True), x, rtol=0, atol=0)


def test_max_pooling_of_integers() -> None:
    """Beyond what float32 holds exactly, within what the flavor's integers hold."""
    most = 2**40 if capabilities.current().has_int64 else 2**31
    check(lambda x: F.max_pool2d(x, 3, 2, 1), torch.randint(-most, most, (1, 2, 6, 6)))


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("pool", [F.adaptive_avg_pool2d, F.adaptive_max_pool2d])
def test_adaptive_parts_of_unequal_length(pool: Any, output: Any) -> None:
    # means over up to 72 elements in another order: 72 * 6e-8
    check(lambda x: pool(x, output), torch.randn(2, 3, 8, 7), rtol=1e-5)
    check(
        lambda x: pool(x, output),
        torch.randn(2, 3, 8, 7),
        dynamic=NHW,
        rtol=1e-5,
        more=[(torch.randn(1, 3, 5, 9),)],
    )


@pytest.mark.parametrize("output", OUTPUTS)
def test_adaptive_indices(output: Any) -> None:
    check(
        lambda x: F.adaptive_max_pool2d(x, output, return_indices=True),
        torch.randn(2, 3, 8, 7),
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("shape", [(2, 3, 8), (3, 8)])
def test_one_axis(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    for pool in (F.adaptive_avg_pool1d, F.adaptive_max_pool1d):
        check(lambda x, pool=pool: pool(x, 3), x, compile=False)  # type: ignore[misc]
    check(lambda x: F.avg_pool1d(x, 3, 2, 1), x)
    check(lambda x: F.max_pool1d(x, 3, 2, 1, return_indices=True), x)


@pytest.mark.parametrize(
    "shape", [(2, 3, 8, 7, 6), pytest.param((3, 8, 7, 5), marks=pytest.mark.slow)]
)
def test_three_axes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    for pool in (F.adaptive_avg_pool3d, F.adaptive_max_pool3d):
        check(lambda x, pool=pool: pool(x, (3, 2, 1)), x, rtol=1e-5, compile=False)  # type: ignore[misc]
    check(lambda x: F.avg_pool3d(x, 3, 2, 1, True, False, 4), x)
    check(lambda x: F.max_pool3d(x, 3, 2, 1, return_indices=True), x)


@pytest.mark.slow
def test_dynamic_batch_and_three_dynamic_axes() -> None:
    dynamic = {0: {0: "n", 2: "d", 3: "h", 4: "w"}}
    x, y = torch.randn(2, 3, 6, 7, 8), torch.randn(1, 3, 4, 4, 4)
    spans = dict.fromkeys("dhw", (4, 6, 12))
    check(
        lambda x: F.adaptive_avg_pool3d(x, 2),
        x,
        dynamic=dynamic,
        spans=spans,
        more=[(y,)],
        rtol=1e-5,
    )
    check(
        lambda x: F.max_pool3d(x, 3, 2, 1, ceil_mode=True),
        x,
        dynamic=dynamic,
        spans=spans,
        more=[(y,)],
    )


@pytest.mark.parametrize("pool", [F.avg_pool2d, F.max_pool2d])
def test_window_larger_than_the_input_covers_it(pool: Any) -> None:
    """EfficientNet of transformers has such windows. TensorRT refuses 400 by 400."""
    x = torch.randn(2, 3, 5, 5)
    check(lambda x: pool(x, 400, ceil_mode=True), x)
    check(
        lambda x: pool(x, (400, 300), ceil_mode=True),
        x,
        dynamic=NHW,
        spans=SPANS,
        more=others(),
        rtol=1e-5,
    )
    # the window covers one axis, or only the smaller sizes
    for window in ((20, 3), (6, 20), 19):
        check(
            lambda x, window=window: pool(x, window, ceil_mode=True),  # type: ignore[misc]
            x,
            dynamic=NHW,
            spans=SPANS,
            more=others(),
            rtol=1e-5,
            compile=False,
        )


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64])
def test_maxima_of_integers_are_of_their_dtype(dtype: torch.dtype) -> None:
    x = torch.randint(0, 100, (2, 3, 6, 5)).to(dtype)
    check(
        lambda x: (
            F.max_pool2d(x, 2, padding=1),
            *F.max_pool2d(x, 3, 2, return_indices=True),
        ),
        x,
    )
