"""The results of verify for one golden and for one model."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException

from builder.parity.comparison import Comparison, Spread
from builder.parity.shared_memory import BODY

CANNOT_RUN = "plan cannot run here"
"""The Python runtime's `trt_build.why` if torch runs instead of a plan."""

FAILURES = (InferenceServerException, OSError, TimeoutError)
"""The errors of a request."""


@dataclass(frozen=True)
class GoldenResult:
    """The result of one golden, or one sequence of them, over one protocol.

    Protocols are "http", "grpc", "grpc x16" (one of many parallel requests), and "http system" or
    "grpc cuda" (tensors in shared memory). Latencies are in milliseconds, None if not measured.
    `times_ms` are those of single requests.
    """

    golden: str
    protocol: str
    comparison: Comparison | None
    error: str | None = None
    median_ms: float | None = None
    p95_ms: float | None = None
    times_ms: tuple[float, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether a response was received and passed."""
        return self.comparison is not None and self.comparison.passed

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems as text."""
        if self.error:
            return (self.error,)
        return self.comparison.problems if self.comparison else ()


@dataclass(frozen=True)
class ModelParity:
    """One model: what ran it (`answered_by` "plan" or "torch", None if unknown; `device`; `why`),
    and the result of every golden.
    """

    name: str
    platform: str
    answered_by: str | None
    device: str | None
    why: str | None
    results: tuple[GoldenResult, ...]
    problems: tuple[str, ...] = ()
    has_plan: bool = False

    @property
    def plan_not_executed(self) -> bool:
        """Whether the model has a plan, and torch ran instead."""
        return self.has_plan and self.answered_by is not None and not self.by_plan

    @property
    def by_plan(self) -> bool:
        """Whether a plan ran: alone, or with torch for segments without a plan. False if torch
        replaced a plan that cannot run.
        """
        kinds = (self.answered_by or "").split("+")
        return "plan" in kinds and CANNOT_RUN not in (self.why or "")

    @property
    def share(self) -> float | None:
        """The largest error of all responses relative to its tolerance; None without responses."""
        shares = [
            result.comparison.share for result in self.results if result.comparison
        ]
        return max((share for share in shares if share is not None), default=None)

    @property
    def passed(self) -> bool:
        """Whether every golden passed and the model has no other problem."""
        return (
            not self.problems
            and bool(self.results)
            and all(result.passed for result in self.results)
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON data: everything, with `passed` and `problems` of every level."""
        results = [_result_dict(result) for result in self.results]
        share = self.share
        fields = {
            "passed": self.passed,
            "plan_not_executed": self.plan_not_executed,
            "share": share if share is not None and np.isfinite(share) else None,
            "p50_ms": self.percentile(50),
            "p99_ms": self.percentile(99),
        }
        return {**asdict(self), "results": results, **fields}

    def spread(self) -> dict[str, dict[str, list[Any]]]:
        """The spread of each output, over all responses and all requests of a sequence.

        It has up to MOST_PAIRS elements as `expected` and `answered`, and `counts` of all elements
        by their error, as in Spread.
        """
        spreads_by_output: dict[str, list[Spread]] = {}
        for result in self.results:
            if not result.comparison:
                continue
            for output in result.comparison.outputs:
                if output.spread is not None:
                    name = STEP.sub("", output.name)
                    spreads_by_output.setdefault(name, []).append(output.spread)
        return {name: _merged(spreads) for name, spreads in spreads_by_output.items()}

    def percentile(self, percent: float) -> float | None:
        """The latency in milliseconds over all timed requests; None if none was timed."""
        times = [time for result in self.results for time in result.times_ms]
        if times:
            return float(np.percentile(times, percent))
        return None


MOST_PAIRS = 240
STEP = re.compile(r"@\d+$")
"""The suffix of an output's name in the result of a sequence: the number of its request."""


def _merged(spreads: Sequence[Spread]) -> dict[str, list[Any]]:
    """The first pair of each spread, which has its worst element, before the others."""
    first: list[tuple[float, float]] = []
    remaining: list[tuple[float, float]] = []
    for spread in spreads:
        pairs = list(zip(spread.expected, spread.answered, strict=True))
        first += pairs[:1]
        remaining += pairs[1:]
    space = max(MOST_PAIRS - len(first), 0)
    step = 0.0
    if space:
        step = max(len(remaining) / space, 1.0)
    chosen = first[:MOST_PAIRS] + [
        remaining[int(number * step)] for number in range(min(space, len(remaining)))
    ]
    counts_by_bin = zip(*(spread.counts for spread in spreads), strict=True)
    return {
        "expected": [expected for expected, _ in chosen],
        "answered": [actual for _, actual in chosen],
        "counts": [sum(counts) for counts in counts_by_bin],
    }


def transport(protocol: str, memory: str) -> str:
    """How a golden was sent: the protocol and the kind of shared memory."""
    if memory == BODY:
        return protocol
    return f"{protocol} {memory}"


def milliseconds(call: Callable[[], Any]) -> float:
    """The time of one call in milliseconds."""
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e3


def percentiles(times: Sequence[float]) -> tuple[float | None, float | None]:
    """Median and 95th percentile; None if nothing was timed."""
    if times:
        return float(np.percentile(times, 50)), float(np.percentile(times, 95))
    return None, None


def _result_dict(result: GoldenResult) -> dict[str, Any]:
    compared = result.comparison.as_dict() if result.comparison else None
    return {
        "golden": result.golden,
        "protocol": result.protocol,
        "passed": result.passed,
        "problems": list(result.problems),
        "comparison": compared,
        "median_ms": result.median_ms,
        "p95_ms": result.p95_ms,
    }
