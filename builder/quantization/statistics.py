"""Statistics of tensors that calibration collects."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from builder.quantization.ranges import BINS, Counts

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
NOT_FINITE = "calibration met values that are not finite"


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
