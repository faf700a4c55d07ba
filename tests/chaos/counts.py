"""Results of the clients of one server and of its memory: the fields that all runs share."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tests.chaos import flat
from tests.chaos.asking import Window


class Results:
    """The base class of the dataclasses that runs return."""

    @property
    def bad(self) -> int:
        """The number of failures that users must not see."""
        return 0

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


@dataclass
class ServedCounts(Results):
    """Counts. Latencies are those of the requests in set_latencies(). Memory is in MiB: PSS of
    `limit`, allocated memory of `push`.
    """

    clients: int = 0
    requests: int = 0
    failed: int = 0
    wrong: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    slowest_ms: float = 0.0
    leaked_models: int = 0
    leaked_processes: int = 0
    missing: int = 0
    flat: bool | None = None
    """Whether neither the server nor its other processes grew: see flat.py."""
    server_growth: float | None = None
    stub_growth: float | None = None
    server_mib: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def bad(self) -> int:
        """The number of failures that users must not see."""
        leaked = self.leaked_models + self.leaked_processes + self.missing
        return self.failed + self.wrong + leaked + (self.flat is False)

    def set_latencies(self, window: Window) -> None:
        """Set the percentiles of these requests."""
        self.p50_ms, self.p99_ms = window.percentile(50), window.percentile(99)

    def set_answers(self, window: Window) -> None:
        """Count the responses of all requests, except the failed ones."""
        self.requests, self.wrong = window.requests, window.wrong
        self.slowest_ms = window.slowest_ms
        self.errors |= dict(window.errors)

    def set_flat(self) -> None:
        """Set `flat` from the recorded growths."""
        self.flat = flat.is_flat(self.server_growth, self.stub_growth)
