"""Measures a server at its limit.

Clients send requests without a pause. Their number is increased until more of them receive no more
responses. Memory and latency are then measured for minutes with that number.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.serving import FREE_PORTS, Server, serve
from tests.chaos import census, flat
from tests.chaos.asking import MODELS, Window
from tests.chaos.clients import EACH, Clients
from tests.chaos.counts import ServedCounts
from tests.chaos.pushing import publish_generation

GAIN = 1.05
"""Below this factor of responses with twice the clients, the limit is reached."""
MOST = 128
RAMP_SECONDS = 8.0
SAMPLE_SECONDS = 5.0
TICKS = 100
"""The number of processor time ticks per second in /proc."""


@dataclass
class Counts(ServedCounts):
    """The results.

    `ramp` has responses per second by number of clients. The other counts are for `clients`, the
    number at the limit. `busy` is the mean number of processors that the server and its processes
    used.
    """

    minutes: float = 0.0
    ramp: dict[str, float] = field(default_factory=dict)
    per_second: float = 0.0
    busy: float = 0.0
    stubs_mib: list[float] = field(default_factory=list)


def run(folder: Path, minutes: float, out: Path | None = None) -> Counts:
    """Find the limit of a server with an ensemble and a single-folder model, then load it for
    `minutes`.

    Each sample is a line of the file `out`.
    """
    counts, served = Counts(minutes=minutes), folder / "served"
    for model in MODELS:
        publish_generation(model, 1, served)
    with serve(served, **FREE_PORTS, ready_timeout=240) as server:
        counts.clients = _limit(server, counts)
        total, began = Window(), time.monotonic()
        before = _processor_seconds(server)
        for sample in _samples(server, served, counts, minutes * 60):
            total.add(Window.of(sample["window"]))
            counts.server_mib.append(sample["server_mib"])
            counts.stubs_mib.append(sample["stubs_mib"])
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(sample) + "\n")
            took = time.monotonic() - began
            counts.busy = round((_processor_seconds(server) - before) / took, 2)
            _sum(counts, total, took)
    return counts


def _limit(server: Server, counts: Counts) -> int:
    """The number of clients from which on twice as many receive hardly more responses."""
    number, reached = EACH, 0.0
    while True:
        with Clients(server, number) as clients_running:
            while not clients_running.taken().requests:
                time.sleep(0.1)
            time.sleep(RAMP_SECONDS)
            rate = clients_running.taken().requests / RAMP_SECONDS
        counts.ramp[str(number)] = round(rate, 1)
        if rate < GAIN * reached or number >= MOST:
            return number
        number, reached = number * 2, rate


def _samples(
    server: Server, served: Path, counts: Counts, seconds: float
) -> Iterator[dict[str, Any]]:
    with Clients(server, counts.clients) as clients_running:
        while not clients_running.taken().requests:
            time.sleep(0.1)
        began = time.monotonic()
        while (at := time.monotonic() - began) < seconds:
            time.sleep(SAMPLE_SECONDS)
            held = census.take(server, served, "none", wait=0.0)
            for name in ("leaked_models", "leaked_processes", "missing"):
                setattr(
                    counts, name, max(getattr(counts, name), len(getattr(held, name)))
                )
            yield {
                "at": round(at, 1),
                "window": clients_running.taken().as_dict(),
                **held.as_dict(),
            }
    counts.failed += clients_running.died


def _sum(counts: Counts, total: Window, took: float) -> None:
    counts.set_latencies(total)
    counts.set_answers(total)
    counts.failed = total.failed
    counts.per_second = round(total.requests / took, 1)
    counts.server_growth = flat.growth(counts.server_mib)
    counts.stub_growth = flat.growth(counts.stubs_mib)
    counts.set_flat()


def _processor_seconds(server: Server) -> float:
    """The processor seconds of the server and its processes since their start."""
    pids = (server.process.pid, *census.children(server.process.pid))
    seconds = 0.0
    for pid in pids:
        fields = (
            (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()
        )
        seconds += (int(fields[11]) + int(fields[12])) / TICKS
    return seconds
