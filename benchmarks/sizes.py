"""Whether a cost is linear: several sizes timed in turns, each with as much work in a round as the
others.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence


def medians(runs: Sequence[Callable[[], float]], sizes: Sequence[int], rounds: int) -> list[float]:
    """Median seconds of one run of each size; a run gives its own seconds.

    Small sizes run as often in a round as it takes to do the work of the largest: the least of many
    short runs would not be the like of the least of few long ones.
    """
    counts = [max(sizes) // size for size in sizes]
    found = [
        [sum(run() for _ in range(count)) / count for run, count in zip(runs, counts, strict=True)]
        for _ in range(rounds)
    ]
    return [statistics.median(times) for times in zip(*found, strict=True)]
