"""Measures whether a cost is linear: several sizes are timed alternately, with equal work in each
round.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence


def medians(
    runs: Sequence[Callable[[], float]], sizes: Sequence[int], rounds: int
) -> list[float]:
    """Return the median seconds of one run of each size; a run returns its own seconds.

    Small sizes run several times in a round, until they have done the work of the largest. The
    minimum of many short runs would not be comparable with the minimum of few long ones.
    """
    counts = [max(sizes) // size for size in sizes]
    rounds_of_times = [
        [
            sum(run() for _ in range(count)) / count
            for run, count in zip(runs, counts, strict=True)
        ]
        for _ in range(rounds)
    ]
    return [statistics.median(times) for times in zip(*rounds_of_times, strict=True)]
