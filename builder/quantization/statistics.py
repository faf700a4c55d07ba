"""Statistics of tensors that calibration collects, and the largest representable magnitudes from
them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
NOT_FINITE = "the calibration data lead to values that are not finite"


@dataclass
class Range:
    """The largest magnitude of a tensor over all batches. `dtype` is None if the tensor was never
    observed.
    """

    dtype: torch.dtype | None = None
    greatest: float = 0.0

    def __call__(self, x: torch.Tensor) -> None:
        self.dtype = x.dtype
        if x.dtype in FLOATS and x.numel():
            # comparisons with NaN are false: see `problem`
            self.greatest = max(self.greatest, float(x.abs().max()))
            if bool(x.isnan().any()):
                self.greatest = math.nan

    @property
    def problem(self) -> str | None:
        """The reason why the tensor cannot be quantized; None if it can."""
        if self.dtype is None:
            return "calibration never reached it"
        if self.dtype not in FLOATS:
            return f"it multiplies {str(self.dtype).removeprefix('torch.')}"
        if not math.isfinite(self.greatest):
            return NOT_FINITE
        return None


@dataclass
class Histogram:
    """The histogram of a tensor's magnitudes from 0 to `greatest`."""

    greatest: float
    counts: Counts = field(default_factory=lambda: np.zeros(BINS))

    def __call__(self, x: torch.Tensor) -> None:
        if self.greatest:
            self.counts += (
                torch.histc(x.float().abs(), BINS, 0, self.greatest).double().numpy()
            )


@dataclass
class Error:
    """The energy of a tensor, and of its difference from the result with rounded operands."""

    signal: float = 0.0
    noise: float = 0.0

    def __call__(self, x: torch.Tensor, rounded: torch.Tensor) -> None:
        self.signal += float(x.double().square().sum())
        self.noise += float((x.double() - rounded.double()).square().sum())

    @property
    def sqnr(self) -> float:
        """The signal-to-quantization-noise ratio in dB; NaN if a result was not finite.

        20 dB is an error of a tenth, 40 dB of a hundredth.
        """
        if not math.isfinite(self.signal + self.noise):
            return math.nan
        if not self.noise:
            return math.inf
        if self.signal:
            return 10 * math.log10(self.signal / self.noise)
        return -math.inf


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
