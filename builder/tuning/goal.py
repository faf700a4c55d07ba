"""The goal of tuning, and the score of a load level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from builder.bench import LevelResult

DEFAULT_PERCENTILE = 99.0


@dataclass(frozen=True)
class Goal:
    """The goal: the highest throughput, or with `rate` (requests a second) the lowest latency at
    that rate.

    With `ms`, a load counts only if its latency at `percentile` is at most that many milliseconds.
    """

    percentile: float = DEFAULT_PERCENTILE
    ms: float | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        """The percentile's name in benchmark results: "p99"."""
        return f"p{self.percentile:g}"

    def __str__(self) -> str:
        limit = ""
        if self.ms is not None:
            limit = f"{self.name} <= {self.ms:g} ms"
        if self.rate is None:
            return "highest throughput" + (f" with {limit}" if limit else "")
        at = f"lowest {self.name} at {self.rate:g} requests/s"
        return at + (f", {limit}" if limit else "")

    def latency(self, level: LevelResult) -> float | None:
        """Milliseconds at the percentile; None if too few requests were measured."""
        estimate = level.latency_ms.get(self.name)
        return None if estimate is None else estimate.value

    def holds(self, level: LevelResult) -> bool:
        """Whether all requests of the level succeeded within the limit."""
        if level.errors or level.dropped or not level.requests:
            return False
        latency = self.latency(level)
        return self.ms is None or (latency is not None and latency <= self.ms)

    def score(self, levels: Sequence[LevelResult]) -> float | None:
        """Return the score, higher is better; None if no level is within the limit.

        It is the best level's requests per second, or with `rate` its negative latency in
        milliseconds.
        """
        return max(
            (score for level in levels if (score := self._score(level)) is not None),
            default=None,
        )

    def _score(self, level: LevelResult) -> float | None:
        if not self.holds(level):
            return None
        if self.rate is None:
            return level.throughput.value
        latency = self.latency(level)
        return None if latency is None else -latency

    def best(self, levels: Sequence[LevelResult]) -> LevelResult | None:
        """The level that `score` is from."""
        scored = [level for level in levels if self._score(level) is not None]
        return max(scored, key=lambda level: self._score(level) or 0.0, default=None)

    def gain(self, before: float, after: float) -> float:
        """Return `after` relative to `before`: 1.5 is 50 % more throughput, or two thirds of the
        latency.
        """
        if self.rate is None:
            return after / before
        return before / after
