"""The range of a quantization grid, from a histogram of magnitudes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from builder.quantization.statistics import BINS, METHODS, Error, Histogram, Range


def counts(values: torch.Tensor) -> np.ndarray:
    histogram = Histogram(float(values.abs().max()))
    histogram(values)
    return histogram.counts


def test_histogram_counts_every_element_of_every_batch() -> None:
    histogram = Histogram(2.0)
    histogram(torch.tensor([-2.0, 0.0, 1.0]))
    histogram(torch.tensor([2.0]))
    assert histogram.counts.sum() == 4
    assert (histogram.counts[0], histogram.counts[BINS // 2], histogram.counts[-1]) == (
        1,
        1,
        2,
    )


def test_max_covers_the_whole_range() -> None:
    assert METHODS["max"](counts(torch.randn(1000)), 99.0) == 1.0


@pytest.mark.parametrize("percentile", [50.0, 90.0, 99.9])
def test_percentile_covers_its_share(percentile: float) -> None:
    values = torch.rand(100_000)
    share = METHODS["percentile"](counts(values), percentile)
    assert share == pytest.approx(percentile / 100, abs=1 / BINS + 0.005)


def test_entropy_excludes_an_outlier_and_covers_uniform_values() -> None:
    torch.manual_seed(0)
    values = torch.randn(100_000)
    # about 100 times the others: with max, the others would get one or two of 128 levels
    values[0] = 400.0
    assert METHODS["entropy"](counts(values), 0.0) < 0.1
    assert METHODS["entropy"](counts(torch.rand(100_000)), 0.0) > 0.9


def test_invalid_range_has_a_reason() -> None:
    seen = Range()
    assert seen.problem == "calibration never reached it"
    seen(torch.tensor([1, 2]))
    assert seen.problem == "it multiplies int64"
    for bad in (float("nan"), float("inf")):
        other = Range()
        other(torch.tensor([bad, 1.0]))
        other(torch.tensor([5.0]))  # a later batch does not hide it
        assert other.problem == (
            "the calibration data lead to values that are not finite"
        )
    good = Range()
    good(torch.tensor([-3.0, 1.0]))
    assert (good.greatest, good.problem) == (3.0, None)


def test_sqnr_of_ten_percent_error_is_20_db() -> None:
    error, x = Error(), torch.randn(1000)
    error(x, x * 1.1)
    assert error.sqnr == pytest.approx(20.0, abs=1e-3)
    assert Error().sqnr == float("inf")
