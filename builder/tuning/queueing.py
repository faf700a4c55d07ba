"""Estimates every configuration from one measurement, so that the search begins with good ones.

A batch of b rows takes a + k b seconds; a and k are fitted to Triton's counts. Up to the maximum, a
batch has the rows that arrive while all instances are busy, and a request waits half a service
time. At the maximum, a batch waits for one of c instances as in an M/D/c queue. Allen and Cunneen
approximate that by half the wait of the M/M/c queue (Erlang's C formula), since service times
hardly vary (A. O. Allen, Probability, Statistics, and Queueing Theory, 2nd edition, 1990, section
5.2.5).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from builder.tuning.space import DELAY, INSTANCES, MAX_BATCH, Configuration

BISECTIONS = 40
UNSTABLE = math.inf


@dataclass(frozen=True)
class Service:
    """The service time: a batch of b rows takes `fixed` + b * `row` seconds, on one of at most
    `slots` instances that compute at the same time.
    """

    fixed: float
    row: float
    slots: int

    def seconds(self, rows: float) -> float:
        """The seconds of one batch."""
        return self.fixed + self.row * rows


def fitted(points: Sequence[tuple[int, float, int]], slots: int) -> Service:
    """Fit by least squares over batches: each point is (rows, seconds, count).

    With a single size, the fixed part is zero. Raises ValueError without a batch.
    """
    total = sum(weight for *_, weight in points)
    if not total:
        raise ValueError("no batch was executed")
    mean_rows = sum(rows * weight for rows, _, weight in points) / total
    mean_seconds = sum(seconds * weight for _, seconds, weight in points) / total
    spread = sum(weight * (rows - mean_rows) ** 2 for rows, _, weight in points)
    if not spread:
        return Service(0.0, mean_seconds / max(mean_rows, 1.0), slots)
    slope = (
        sum(
            weight * (rows - mean_rows) * (seconds - mean_seconds)
            for rows, seconds, weight in points
        )
        / spread
    )
    slope = min(max(slope, 0.0), mean_seconds / mean_rows)
    return Service(mean_seconds - slope * mean_rows, slope, slots)


def latency(service: Service, configuration: Configuration, rate: float) -> float:
    """Mean seconds of a request of one row at `rate` requests per second; infinite above
    capacity.
    """
    servers = min(int(configuration[INSTANCES]), service.slots)
    most = max(1, int(configuration[MAX_BATCH]))
    delay = int(configuration.get(DELAY, 0)) / 1e6
    if rate * service.seconds(most) >= servers * most:
        return UNSTABLE
    rows = _rows(service, servers, most, delay, rate)
    seconds = service.seconds(rows)
    load = rate / rows * seconds
    if rows < most:
        # requests that arrive meanwhile form the next batch: none waits for two
        wait = min(1.0, load / servers) * seconds / (2 * servers)
    else:
        wait = erlang_c(servers, load) * seconds / (2 * (servers - load))
    collected = 0.0
    if rate:
        collected = min(delay, (rows - 1) / rate)
    return collected + wait + seconds


def _rows(
    service: Service, servers: int, most: int, delay: float, rate: float
) -> float:
    """The rows of a batch: those that arrive during the queue delay, or while all instances are
    busy, up to the maximum.
    """
    rows = 1.0
    for _ in range(BISECTIONS):
        arriving = rate * max(delay, service.seconds(rows) / servers)
        rows = min(max(1.0, arriving), float(most))
    return rows


def capacity(
    service: Service, configuration: Configuration, limit: float | None
) -> float:
    """The highest rate with a mean latency of at most `limit` seconds (None: below capacity)."""
    rows = service.slots * int(configuration[MAX_BATCH] or 1)
    low = 0.0
    high = 2.0 * rows / service.seconds(1)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        seconds = latency(service, configuration, middle)
        holds = seconds < UNSTABLE and (limit is None or seconds <= limit)
        low, high = (middle, high) if holds else (low, middle)
    return low


def erlang_c(servers: int, load: float) -> float:
    """The probability that an arrival waits in an M/M/c queue with `load` = arrival rate times
    service time < servers.
    """
    inverse = 1.0  # from Erlang's B formula, by its recursion
    for number in range(1, servers + 1):
        inverse = 1.0 + inverse * number / load if load else math.inf
    blocked = 0.0 if math.isinf(inverse) else 1.0 / inverse
    return blocked / (1.0 - load / servers * (1.0 - blocked))
