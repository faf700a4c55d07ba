"""Decides whether memory use stays constant, by one criterion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

FEWEST = 12
"""The minimum number of samples for a conclusion."""
LIMIT = 1.10


def growth(samples: Sequence[float]) -> float | None:
    """Return the median of the last quarter divided by that of the second; the first quarter is
    warm-up.

    None for fewer than FEWEST samples.
    """
    quarter = len(samples) // 4
    if len(samples) < FEWEST:
        return None
    before, after = median(samples[quarter : 2 * quarter]), median(samples[-quarter:])
    return round(after / before, 3)


def is_flat(*growths: float | None) -> bool | None:
    """Whether none grew by more than a tenth. None if nothing can be concluded."""
    known = [one for one in growths if one is not None]
    return all(one <= LIMIT for one in known) if known else None


@dataclass(frozen=True)
class Trend:
    """Memory as a sum of a part for each running process and a part that grows with each sample.

    `level` has the samples at the median number of processes.
    """

    level: list[float]
    per_sample: float


def trend(samples: Sequence[float], processes: Sequence[int]) -> Trend | None:
    """Fit by least squares, after a first quarter of warm-up.

    A server holds memory for each loaded model. In poll mode, the number of models rises and falls
    with the grace period of former steps. None for fewer than FEWEST samples.
    """
    if len(samples) < FEWEST:
        return None
    held, values = np.asarray(processes, float), np.asarray(samples, float)
    warm = slice(len(values) // 4, None)
    columns = np.stack(
        [np.ones_like(held), held, np.arange(len(held), dtype=float)], axis=1
    )
    _, each, rise = np.linalg.lstsq(columns[warm], values[warm], rcond=None)[0]
    if (
        np.ptp(held[warm]) == 0
    ):  # a constant number: the memory of each cannot be determined
        each, rise = 0.0, np.polyfit(columns[warm, 2], values[warm], 1)[0]
    level = values - each * (held - np.median(held))
    return Trend([float(one) for one in level], float(rise))
