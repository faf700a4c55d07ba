"""Compute the largest representable magnitude of a tensor from its calibration statistics."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

BINS = 2048
LEVELS = 128
"""The number of magnitudes in int8."""

Counts = NDArray[np.float64]
"""The number of elements in each of BINS equal bins of |x|, from 0 to the largest |x|."""


def maximum(counts: Counts, percentile: float) -> float:
    """The whole range: nothing saturates."""
    return 1.0


def by_percentile(counts: Counts, percentile: float) -> float:
    """The magnitude that `percentile` percent of the elements do not exceed."""
    below = np.cumsum(counts)
    target = below[-1] * percentile / 100
    return float(np.searchsorted(below, target) + 1) / len(counts)


def entropy(counts: Counts, percentile: float) -> float:
    """The saturation limit for which the rounded distribution loses the least information.

    It minimizes the Kullback-Leibler divergence between the histogram, with elements beyond the
    limit in its last bin, and the same histogram in 128 levels. Source: S. Migacz, "8-bit Inference
    with TensorRT", GTC 2017. The zeros of a ReLU are exact with any scale, so the first bin is
    ignored.
    """
    counts = counts.copy()
    counts[0] = counts[1]
    limits = range(LEVELS, len(counts) + 1, LEVELS // 8)
    return min(limits, key=lambda limit: _divergence(counts, limit)) / len(counts)


def _divergence(counts: Counts, limit: int) -> float:
    true = counts[:limit].copy()
    present = true > 0
    levels = np.arange(limit) * LEVELS // limit
    total = np.bincount(levels, weights=counts[:limit], minlength=LEVELS)
    width = np.bincount(levels, weights=present, minlength=LEVELS)
    rounded = np.where(present, (total / np.maximum(width, 1))[levels], 0.0)
    true[-1] += counts[limit:].sum()
    if not rounded.sum():
        return float("inf")
    p = true / true.sum()
    q = rounded / rounded.sum()
    occupied = p > 0
    least = np.finfo(np.float64).tiny
    ratio = p[occupied] / np.maximum(q[occupied], least)
    return float(np.sum(p[occupied] * np.log(ratio)))


METHODS: dict[str, Callable[[Counts, float], float]] = {
    "max": maximum,
    "percentile": by_percentile,
    "entropy": entropy,
}
"""By name: (counts, percentile) -> the share of the largest magnitude that is representable."""
