"""Publishes an ensemble repeatedly while clients send requests, and checks every response."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from builder.parity.clients import Client, GrpcClient, HttpClient
from builder.serving import Server
from builder.serving.control import update
from builder.triton import publish
from tests.chaos.counts import Results
from tests.chaos.servers import start_free
from tests.triton.artifacts import pair

NAME = "pair"
SWITCH_TIMEOUT = 240.0


@dataclass
class Counts(Results):
    """The results of the clients. `mixed`: steps of two generations computed the response."""

    mode: str
    clients: int
    publications: int = 0
    requests: int = 0
    right: int = 0
    failed: int = 0
    mixed: int = 0
    empty: int = 0
    backward: int = 0
    """Responses of an earlier generation after the same client received one of a later
    generation.
    """
    seconds: float = 0.0
    slowest_ms: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def bad(self) -> int:
        """Responses that users must not see."""
        return self.failed + self.mixed + self.empty


def run(repository: Path, mode: str, *, publications: int, clients: int) -> Counts:
    """Publish `publications` generations, waiting for each at the endpoint, under `clients`
    threads.

    Half of the threads use gRPC.
    """
    publish(pair(1, NAME), repository)
    counts, log = Counts(mode, clients), repository.parent / f"{mode}.log"
    with start_free(repository, mode, NAME, log) as server:
        server.wait_ready(SWITCH_TIMEOUT)
        _load(server, repository, counts, publications)
    return counts


def _load(server: Server, repository: Path, counts: Counts, publications: int) -> None:
    ended, lock, began = threading.Event(), threading.Lock(), time.monotonic()
    clients_running = [
        threading.Thread(target=_ask, args=(_client(server, n), n, ended, lock, counts))
        for n in range(counts.clients)
    ]
    for thread in clients_running:
        thread.start()
    try:
        for generation in range(2, 2 + publications):
            folder = publish(pair(generation, NAME), repository)
            if counts.mode == "explicit":
                update(server.http_url, folder, drain=2)
            _await(server, generation)
            counts.publications += 1
    finally:
        ended.set()
        for thread in clients_running:
            thread.join()
        counts.seconds = round(time.monotonic() - began, 1)


def _client(server: Server, number: int) -> Client:
    return (
        GrpcClient(server.grpc_url, 60)
        if number % 2
        else HttpClient(server.http_url, 60)
    )


def _await(server: Server, generation: int) -> None:
    """Wait until the endpoint returns this generation."""
    client, deadline = _client(server, 1), time.monotonic() + SWITCH_TIMEOUT
    x = np.zeros((1, 2), "float32")
    try:
        while time.monotonic() < deadline:
            # clients count the same failures
            try:
                if client.infer(NAME, {"x": x}).outputs["g"][0, 0] == generation:
                    return
            except Exception:
                pass
            time.sleep(0.2)
    finally:
        client.close()
    raise TimeoutError(f"generation {generation} never answered")


def _ask(
    client: Client,
    seed: int,
    ended: threading.Event,
    lock: threading.Lock,
    counts: Counts,
) -> None:
    random, seen, latest, slowest = np.random.default_rng(seed), Counter[str](), 0, 0.0
    errors = Counter[str]()
    while not ended.is_set():
        x = random.integers(0, 1000, (int(random.integers(1, 4)), 2)).astype("float32")
        began = time.monotonic()
        try:
            outputs = client.infer(NAME, {"x": x}).outputs
        except Exception as error:
            seen["failed"] += 1
            errors[str(error)[:160]] += 1
            continue
        slowest = max(slowest, time.monotonic() - began)
        what, generation = _judged(x, outputs)
        seen[what] += 1
        seen["backward"] += what == "right" and generation < latest
        latest = max(latest, generation)
    client.close()
    with lock:
        for what in ("right", "failed", "mixed", "empty", "backward"):
            setattr(counts, what, getattr(counts, what) + seen[what])
        counts.requests += sum(
            seen[what] for what in ("right", "failed", "mixed", "empty")
        )
        counts.slowest_ms = max(counts.slowest_ms, round(slowest * 1e3, 1))
        counts.errors = dict(Counter(counts.errors) + errors)


def _judged(x: Any, outputs: dict[str, Any]) -> tuple[str, int]:
    """Return `right`, `mixed` or `empty`, and the generation of the last step."""
    if outputs.get("y") is None or outputs.get("g") is None:
        return "empty", 0
    return (
        "right" if np.array_equal(outputs["y"], x) else "mixed",
        int(outputs["g"].flat[0]),
    )
