"""`python -m tests.chaos.asking`: clients of a process of their own, half of them over gRPC. Every
answer is judged, and the counts of each quarter of a second are one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from builder.parity.clients import Client, GrpcClient, HttpClient

MODELS = ("pair", "one")
BAD_EVERY = 5
WIDTH = 1.02
"""The ratio between consecutive latency buckets, which limits the precision of a percentile."""
PERIOD = 0.25
TIMEOUT = 60.0


@dataclass
class Window:
    """The results of clients in a period: `buckets` counts latencies by the power of WIDTH
    in ms.
    """

    requests: int = 0
    failed: int = 0
    wrong: int = 0
    slowest_ms: float = 0.0
    buckets: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, other: Window) -> None:
        """Add the counts of another window."""
        for name in ("requests", "failed", "wrong"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.slowest_ms = max(self.slowest_ms, other.slowest_ms)
        self.buckets += other.buckets
        self.errors += other.errors

    def answered(self, milliseconds: float) -> None:
        """Count the latency of a response."""
        self.slowest_ms = max(self.slowest_ms, round(milliseconds, 1))
        self.buckets[math.ceil(math.log(max(milliseconds, 0.001), WIDTH))] += 1

    def percentile(self, percent: float) -> float:
        """The percentile in ms, at most 2 % too high; 0 without responses."""
        left = math.ceil(self.buckets.total() * percent / 100)
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return round(min(WIDTH**bucket, self.slowest_ms), 1)
        return 0.0

    def as_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            **vars(self),
            "buckets": {str(key): n for key, n in self.buckets.items()},
        }

    @classmethod
    def of(cls, record: dict[str, Any]) -> Window:
        """Create a window from as_dict; other keys are ignored."""
        window = cls(
            *(record[name] for name in ("requests", "failed", "wrong", "slowest_ms"))
        )
        window.buckets = Counter({int(key): n for key, n in record["buckets"].items()})
        window.errors = Counter(record["errors"])
        return window


def is_bad(generation: int) -> bool:
    """Whether the generation must be rejected because its goldens differ from its outputs."""
    return generation % BAD_EVERY == 0


def is_right(model: str, x: Any, outputs: dict[str, Any]) -> bool:
    """Whether the outputs are of one generation that `model` may have."""
    y, g = outputs.get("y"), outputs.get("g")
    if y is None or g is None or not np.array_equal(y, x):
        return False
    generation = int(g.flat[0])
    own = generation == 1 or MODELS[generation % len(MODELS)] == model
    return bool((g == generation).all()) and own and not is_bad(generation)


class Asking:
    """The client threads of this process, and their counts since the last report."""

    def __init__(
        self, http: str, grpc: str, clients: int, seed: int, pause: float
    ) -> None:
        self.urls, self.pause = (http, grpc), pause
        self.ended, self.lock, self.window = (
            threading.Event(),
            threading.Lock(),
            Window(),
        )
        numbers = range(seed, seed + clients)
        self.threads = [threading.Thread(target=self._ask, args=(n,)) for n in numbers]

    def run(self) -> None:
        """Send requests until standard input ends, and print each period's counts."""
        for thread in self.threads:
            thread.start()
        threading.Thread(target=self._wait_for_end, daemon=True).start()
        while not self.ended.wait(PERIOD):
            self._print()
        for thread in self.threads:
            thread.join()
        self._print()

    def _wait_for_end(self) -> None:
        sys.stdin.read()
        self.ended.set()

    def _print(self) -> None:
        with self.lock:
            window, self.window = self.window, Window()
        print(json.dumps(window.as_dict()), flush=True)

    def _ask(self, number: int) -> None:
        client: Client = (GrpcClient if number % 2 else HttpClient)(
            self.urls[number % 2], TIMEOUT
        )
        random = np.random.default_rng(number)
        while not self.ended.is_set():
            model = MODELS[int(random.integers(len(MODELS)))]
            x = random.integers(0, 1000, (int(random.integers(1, 4)), 2)).astype(
                "float32"
            )
            self._count(client, model, x)
            time.sleep(self.pause)
        client.close()

    def _count(self, client: Client, model: str, x: Any) -> None:
        began = time.monotonic()
        try:
            outputs, error = client.infer(model, {"x": x}).outputs, None
        except Exception as caught:
            outputs, error = {}, caught
        milliseconds = (time.monotonic() - began) * 1e3
        with self.lock:
            self.window.requests += 1
            if error is not None:
                self.window.failed += 1
                self.window.errors[f"{model}: {str(error)[:200]}"] += 1
                return
            self.window.answered(milliseconds)
            self.window.wrong += not is_right(model, x, outputs)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("http")
    parser.add_argument("grpc")
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0)
    args = parser.parse_args()
    Asking(args.http, args.grpc, args.clients, args.seed, args.pause).run()


if __name__ == "__main__":
    main()
