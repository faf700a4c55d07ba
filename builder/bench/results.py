"""The results of a benchmark, with 95 % confidence intervals, and their JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builder.bench.job import Samples

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
WINDOWS = 20
RESAMPLES = 200
SMALLEST_SPREAD, DRIFT = 0.05, 0.1
"""Shares of the latency: smaller differences between windows, or a smaller drift of the state, do
not count.
"""
FEW = 10
"""A percentile needs this many requests above it."""
BUSY = 0.85
"""A client process that uses this share of a core limits the result."""
LATE = 0.1
"""Sends are too late if their delay at the 99th percentile is this share of the median latency."""
LATE_MS = 1.0
OWN_SHARE = 0.1
"""The client's own work is reported beside the result from this share of the median latency."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value with the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class LevelResult:
    """The result of one load.

    `latency_ms` is by percentile ("p50", ..., "p99.9"), with a value only if there are enough
    requests above it. `server` has Triton's counts of all requests of the level, including the
    warm-up; `requests` has the client's counts of them. `client_ms` is the client's processor time
    for each request, which its latency includes. `steps` has the same for an ensemble's steps.
    """

    load: str
    concurrency: int | None
    rate: float | None
    requests: int
    errors: dict[str, int]
    examples: dict[str, str]
    dropped: int
    seconds: float
    warm_up_seconds: float
    steady: bool
    throughput: Estimate
    rows_per_second: float
    latency_ms: dict[str, Estimate]
    mean_ms: float
    processes: int
    client_cpu: float
    client_ms: float
    send_delay_ms: float
    client_limited: str | None
    server: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, dict[str, Any]] = field(default_factory=dict)
    gpus: dict[str, dict[str, float]] = field(default_factory=dict)
    counts_agree: bool = True


@dataclass(frozen=True)
class Limit:
    """The highest `rate` (requests per second) with `percentile` of latency within `ms`; None if
    there is none. `trials` has all rates that were tried, with the results.
    """

    percentile: str
    ms: float
    rate: float | None
    trials: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class ModelBench:
    """The results of one model over one protocol. `sizes` are the names of the goldens that were
    sent.
    """

    name: str
    protocol: str
    memory: str
    sizes: tuple[str, ...]
    levels: tuple[LevelResult, ...]
    limit: Limit | None = None
    problem: str | None = None


def summarize(samples: Sequence[Samples], seconds: float) -> dict[str, Any]:
    """Return the measured part of a LevelResult: from the first window after the warm-up.

    Arrivals of an open loop are counted from their intended send time.
    """
    intended = np.concatenate([process.intended for process in samples])
    sent = np.concatenate([process.sent for process in samples])
    completed = np.concatenate([process.completed for process in samples])
    rows = np.concatenate([process.rows for process in samples])
    latency = (completed - intended) * 1e3
    begin = float(intended.min()) if intended.size else 0.0
    width = seconds / WINDOWS
    # by the time when a request was due: a very slow one must not drop out of the statistics
    window = np.clip(((intended - begin) / width).astype(int), 0, WINDOWS - 1)
    first, steady = warm_up(latency, window)
    is_steady = window >= first
    start = begin + first * width
    windows = WINDOWS - first
    span = width * windows
    finished = (completed >= start) & (completed < begin + seconds)
    delays = (sent - intended)[is_steady]
    return {
        "warm_up_seconds": first * width,
        "steady": steady,
        "seconds": span,
        "throughput": _throughput(completed, start, width, windows),
        "rows_per_second": float(rows[finished].sum()) / span,
        "latency_ms": _estimates(
            latency[is_steady], window[is_steady] - first, windows
        ),
        "mean_ms": float(latency[is_steady].mean()) if is_steady.any() else 0.0,
        "send_delay_ms": float(np.percentile(delays, 99) * 1e3) if delays.size else 0.0,
    }


def warm_up(latency: Array, window: NDArray[np.int_]) -> tuple[int, bool]:
    """Return the first window of the steady state, and whether there is one.

    The second half is the reference: the median of its windows' mean latencies, and their deviation
    from the differences of neighbors, which a trend hardly changes. The warm-up consists of the
    leading windows outside of this range. The state is steady if the warm-up ends within the first
    half, and the last two quarters agree.
    """
    means = np.array([_mean(latency[window == number]) for number in range(WINDOWS)])
    half = WINDOWS // 2
    known = means[half:][~np.isnan(means[half:])]
    if not known.size:
        return 0, False
    center = float(np.median(known))
    noise = 0.0
    if known.size > 1:
        noise = 1.05 * float(np.median(np.abs(np.diff(known))))
    spread = max(noise, SMALLEST_SPREAD * center)
    within = np.isnan(means) | (np.abs(means - center) <= 3 * spread)
    first = half
    if within[:half].any():
        first = int(np.argmax(within[:half]))
    last = -half // 2
    drift = abs(_median(means[half:last]) - _median(means[last:]))
    steady = bool(drift <= max(2 * spread, DRIFT * center))
    return first, steady and first < half


def _median(values: Array) -> float:
    known = values[~np.isnan(values)]
    if known.size:
        return float(np.median(known))
    return float("inf")


def _mean(values: Array) -> float:
    return float(values.mean()) if values.size else float("nan")


def _throughput(completed: Array, begin: float, width: float, windows: int) -> Estimate:
    """Responses per second in the steady windows, with Student's interval over the windows."""
    edges = begin + width * np.arange(windows + 1)
    counts = np.histogram(completed, edges)[0] / width
    value = float(counts.mean())
    half = 0.0
    if windows > 1:
        half = 2.1 * float(counts.std(ddof=1)) / np.sqrt(windows)
    return Estimate(value, value - half, value + half)


def _estimates(
    latency: Array, window: NDArray[np.int_], windows: int
) -> dict[str, Estimate]:
    """Percentiles, with bootstrap intervals over whole windows, because consecutive latencies are
    not independent.
    """
    # a percentile needs enough latencies beyond it
    percentiles = [
        percentile
        for percentile in PERCENTILES
        if percentile == 50.0 or latency.size * (100 - percentile) / 100 >= FEW
    ]
    if not latency.size:
        return {}
    values = np.percentile(latency, percentiles)
    parts = [latency[window == number] for number in range(windows)]
    random = np.random.default_rng(0)
    drawn = []
    for _ in range(RESAMPLES):
        pooled = np.concatenate(
            [parts[index] for index in random.integers(0, windows, windows)]
        )
        if pooled.size:
            drawn.append(np.percentile(pooled, percentiles))
    interval = np.percentile(np.array(drawn), [2.5, 97.5], axis=0)
    estimates = {}
    for percent, *ends in zip(percentiles, values, *interval, strict=True):
        value, low, high = map(float, ends)
        estimates[f"p{percent:g}"] = Estimate(value, min(low, value), max(high, value))
    return estimates


def client_limit(
    cpu: float, processes: int, send_delay_ms: float, median_ms: float, cores: int
) -> str | None:
    """Why more client processes might change the result; None if they would not. `cpu` is the
    maximum share of a core that a client process used.
    """
    if cpu >= BUSY:
        more = "; use more with --processes" if processes < cores else ""
        return f"client processes used {cpu * 100:.0f} % of a core each{more}"
    if send_delay_ms > max(LATE * median_ms, LATE_MS):
        return f"requests were sent up to {send_delay_ms:.1f} ms late"
    return None


def host() -> dict[str, Any]:
    """The processor of this machine and the number of its cores."""
    return {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()}
