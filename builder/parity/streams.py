"""Verify sequences on a running server: each request has the correlation id of its sequence, and
none has state.

Each sequence is sent alone, then restarted on an id whose sequence has not ended, then all are
interleaved, then many are sent in parallel.
"""

from __future__ import annotations

import itertools
import random
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from builder.parity.clients import Client, SequencePosition
from builder.parity.comparison import Comparison, compare
from builder.parity.results import FAILURES, GoldenResult, percentiles, transport
from builder.parity.served import PublishedModel
from builder.parity.shared_memory import BODY
from builder.triton import Golden

NAME = re.compile(r"(?P<stream>.+)\.(?P<number>\d{3,})")
"""The name of a golden that is a request of a sequence."""
CONCURRENT = 16

_ids = itertools.count(random.getrandbits(48) + 1)
"""Correlation ids that other clients are unlikely to use."""


@dataclass(frozen=True)
class Stream:
    """One sequence: its requests in order, in the endpoint's form."""

    name: str
    requests: tuple[Golden, ...]


def recorded_streams(
    model: PublishedModel, goldens: Sequence[Golden]
) -> tuple[Stream, ...]:
    """The sequences among the goldens, by name."""
    requests_by_stream: dict[str, list[tuple[int, Golden]]] = defaultdict(list)
    for golden in goldens:
        if match := NAME.fullmatch(golden.name):
            requests_by_stream[match["stream"]].append(
                (int(match["number"]), model.without_state(golden))
            )
    ordered = {
        name: sorted(requests, key=lambda request: request[0])
        for name, requests in sorted(requests_by_stream.items())
    }
    return tuple(
        Stream(name, tuple(golden for _, golden in requests))
        for name, requests in ordered.items()
    )


def sequence_of_one_request() -> SequencePosition:
    """A sequence of one request."""
    return SequencePosition(next(_ids), start=True, end=True)


def send_all(
    model: PublishedModel,
    clients: Mapping[str, Client],
    recorded: Sequence[Stream],
    memories: Sequence[str],
) -> Iterator[GoldenResult]:
    """Send every sequence in all modes."""
    for memory, (protocol, client) in itertools.product(memories, clients.items()):
        results = transport(protocol, memory)
        yield from (
            _Player(model, client, stream, results, memory).whole()
            for stream in recorded
        )
    if BODY in memories:
        for protocol, client in clients.items():
            yield _restarted(model, client, recorded, f"{protocol} restarted")
            yield from _interleaved(model, client, recorded, f"{protocol} interleaved")
        yield from _concurrent(model, clients, recorded)


@dataclass
class _Player:
    """Sends one sequence, request by request, and compares every response."""

    model: PublishedModel
    client: Client
    stream: Stream
    transport: str
    memory: str = BODY
    id: int = field(default_factory=lambda: next(_ids))
    outputs: list[Comparison] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    error: str | None = None

    def whole(self) -> GoldenResult:
        while not self.finished:
            self.next()
        return self.result()

    @property
    def finished(self) -> bool:
        return self.error is not None or len(self.outputs) == len(self.stream.requests)

    def next(self) -> None:
        number = len(self.outputs)
        golden = self.stream.requests[number]
        position = SequencePosition(
            self.id, number == 0, number == len(self.stream.requests) - 1
        )
        try:
            with self.client.regions(self.memory, golden) as regions:
                begin = time.perf_counter()
                response = self.client.infer(
                    self.model.name, golden.inputs, regions=regions, position=position
                )
                self.times.append((time.perf_counter() - begin) * 1e3)
        except FAILURES as error:
            self.error = f"request {number}: {error}"
            return
        comparison = compare(
            response.outputs,
            golden,
            self.model.tolerance,
            precision=self.model.precision,
        )
        self.outputs.append(_numbered(comparison, number))

    def result(self) -> GoldenResult:
        whole = Comparison(
            tuple(
                output for comparison in self.outputs for output in comparison.outputs
            )
        )
        if self.error:
            return GoldenResult(self.stream.name, self.transport, None, self.error)
        return GoldenResult(
            self.stream.name,
            self.transport,
            whole,
            None,
            *percentiles(self.times),
            tuple(self.times),
        )


def _numbered(comparison: Comparison, number: int) -> Comparison:
    """The outputs with the request number in their names: `speech@3`."""
    return Comparison(
        tuple(
            replace(output, name=f"{output.name}@{number}")
            for output in comparison.outputs
        )
    )


def _restarted(
    model: PublishedModel, client: Client, recorded: Sequence[Stream], transport: str
) -> GoldenResult:
    """Leave a sequence open, and start another one with the same id: no state of the first may
    remain.
    """
    unfinished = _Player(
        model, client, max(recorded, key=lambda stream: len(stream.requests)), transport
    )
    unfinished.next()
    while (
        not unfinished.finished
        and len(unfinished.outputs) < len(unfinished.stream.requests) - 1
    ):
        unfinished.next()
    return _Player(model, client, recorded[-1], transport, id=unfinished.id).whole()


def _interleaved(
    model: PublishedModel, client: Client, recorded: Sequence[Stream], transport: str
) -> Iterator[GoldenResult]:
    """Send one request of each sequence in turn; each begins one round after the previous one."""
    players = [
        _Player(model, client, stream, transport)
        for stream in recorded[: _open_at_once(model)]
    ]
    for position in itertools.count(1):
        for player in players[:position]:
            if not player.finished:
                player.next()
        if position >= len(players) and all(player.finished for player in players):
            break
    return (player.result() for player in players)


def _concurrent(
    model: PublishedModel, clients: Mapping[str, Client], recorded: Sequence[Stream]
) -> Iterator[GoldenResult]:
    """Send many sequences in parallel over gRPC, each from a separate thread, so that Triton
    batches them. Returns the worst result of each.
    """
    if "grpc" not in clients:
        return
    count = max(min(CONCURRENT, _open_at_once(model)), 1)
    chosen = list(
        itertools.islice(itertools.cycle(recorded), max(count, len(recorded)))
    )
    players = [
        _Player(model, clients["grpc"], stream, f"grpc x{count}") for stream in chosen
    ]
    with ThreadPoolExecutor(count) as pool:
        results = list(pool.map(_Player.whole, players))
    for stream in recorded:
        yield min(
            (result for result in results if result.golden == stream.name),
            key=lambda result: result.passed,
        )


def _open_at_once(model: PublishedModel) -> int:
    """The number of sequences that can be open. Another one would block until one ends."""
    return int(model.config.sequence_batching.oldest.max_candidate_sequences)
