"""Whether memory stays flat, by one criterion."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

FEWEST = 12
"""Samples, below which nothing is concluded."""
LIMIT = 1.10


def growth(samples: Sequence[float]) -> float | None:
    """The median of the last quarter, as a multiple of that of the second: the first is warm-up.
    None for fewer than FEWEST samples.
    """
    quarter = len(samples) // 4
    if len(samples) < FEWEST:
        return None
    before, after = median(samples[quarter : 2 * quarter]), median(samples[-quarter:])
    return round(after / before, 3)


def is_flat(*growths: float | None) -> bool | None:
    """Whether none grew by more than a tenth. None where nothing can be concluded."""
    known = [one for one in growths if one is not None]
    return all(one <= LIMIT for one in known) if known else None
