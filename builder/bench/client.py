"""A client process: sends requests with tritonclient's asyncio clients and times each.

Run as `python -m builder.bench.client`. It reads a pickled Job from standard input and writes the
pickled Samples to standard output.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import pickle
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builder.bench.job import Job, Samples, rows
from builder.parity import shared_memory
from builder.triton import Golden

MOST_IN_FLIGHT = 2048
"""The maximum number of requests in flight of an open loop. Further arrivals are counted as
dropped, because the server is overloaded.
"""
SHARED_SLOTS = 32
"""The number of shared memory regions of an open loop. A request waits for a free one; its latency
still counts from the intended time.
"""


@dataclass(frozen=True)
class _Request:
    """A prepared request: tritonclient's tensors, created once."""

    inputs: Sequence[Any]
    outputs: Sequence[Any] | None
    rows: int


@dataclass
class _Clock:
    """Collects the times of all requests, and the errors."""

    intended: list[float] = field(default_factory=list)
    sent: list[float] = field(default_factory=list)
    completed: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    example: dict[str, str] = field(default_factory=dict)
    dropped: int = 0

    def add(self, intended: float, sent: float, completed: float, count: int) -> None:
        self.intended.append(intended)
        self.sent.append(sent)
        self.completed.append(completed)
        self.rows.append(count)

    def failed(self, error: BaseException) -> None:
        kind = kind_of(error)
        self.errors[kind] += 1
        self.example.setdefault(kind, str(error)[:300])


def kind_of(error: BaseException) -> str:
    """The status from Triton or gRPC, else the error's class."""
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return "timeout"
    status = getattr(error, "status", None)
    text = status() if callable(status) else None
    if text:
        return re.sub(r"^StatusCode\.", "", str(text))
    return type(error).__name__


def tensors(module: ModuleType, golden: Golden) -> list[Any]:
    """The golden's inputs as tritonclient tensors with data."""
    inputs = []
    for name, array in golden.inputs.items():
        tensor = module.InferInput(name, list(array.shape), shared_memory.wire(array))
        inputs.append(tensor.set_data_from_numpy(np.ascontiguousarray(array)))
    return inputs


class _Sender:
    """Sends the job's requests and records their times."""

    def __init__(
        self, job: Job, client: Any, slots: Sequence[Sequence[Sequence[_Request]]]
    ):
        self.job = job
        self.client = client
        self.slots = slots
        self.clock = _Clock()
        self.random = random.Random(job.seed)
        self.ids = itertools.count(self.random.getrandbits(48) + 1)

    async def closed(self) -> None:
        """Run one loop for each request in flight."""
        until = time.monotonic() + self.job.seconds
        count = self.job.load.concurrency or 0
        loops = []
        for number in range(count):
            slot = self.slots[number % len(self.slots)]
            loops.append(self._loop(slot, until, number))
        await asyncio.gather(*loops)

    async def _loop(
        self, sequences: Sequence[Sequence[_Request]], until: float, at: int
    ) -> None:
        order = itertools.islice(itertools.cycle(sequences), at % len(sequences), None)
        while time.monotonic() < until:
            await self._sequence(next(order), None)

    async def _sequence(
        self, requests: Sequence[_Request], intended: float | None
    ) -> None:
        """Send a sequence or a single request. The first request is due at `intended`, each other
        one when the previous response has arrived.
        """
        number = next(self.ids)
        for at, request in enumerate(requests):
            if self.job.stateful:
                options = {
                    "sequence_id": number,
                    "sequence_start": at == 0,
                    "sequence_end": at == len(requests) - 1,
                }
            else:
                options = {}
            if not await self._send(request, options, intended if at == 0 else None):
                return

    async def _send(
        self, request: _Request, options: dict[str, Any], intended: float | None
    ) -> bool:
        if self.job.protocol == "grpc":
            options = {**options, "client_timeout": self.job.timeout}
        sent = time.monotonic()
        try:
            await asyncio.wait_for(
                self.client.infer(
                    self.job.model, request.inputs, outputs=request.outputs, **options
                ),
                self.job.timeout,
            )
        except asyncio.CancelledError:
            raise
        except Exception as error:
            self.clock.failed(error)
            return False
        self.clock.add(
            sent if intended is None else intended, sent, time.monotonic(), request.rows
        )
        return True

    async def open(self) -> None:
        """Send requests at the times of a Poisson process, whether earlier ones were answered or
        not.
        """
        loop = asyncio.get_running_loop()
        finished = asyncio.Event()
        running: set[asyncio.Task[None]] = set()
        free: asyncio.Queue[int] = asyncio.Queue()
        for number in range(len(self.slots)):
            free.put_nowait(number)

        def start(intended: float) -> None:
            if len(running) >= MOST_IN_FLIGHT:
                self.clock.dropped += 1
                return
            task = loop.create_task(self._in_free_slot(free, intended))
            running.add(task)
            task.add_done_callback(running.discard)

        def schedule() -> None:
            # a thread, because the event loop wakes up only at whole milliseconds
            for due in self._arrivals():
                time.sleep(max(0.0, due - time.monotonic()))
                loop.call_soon_threadsafe(start, due)
            loop.call_soon_threadsafe(finished.set)

        thread = threading.Thread(target=schedule, daemon=True)
        thread.start()
        await finished.wait()
        if running:
            await asyncio.wait(running)

    async def _in_free_slot(self, free: asyncio.Queue[int], intended: float) -> None:
        if self.job.memory == shared_memory.BODY:
            await self._sequence(self.random.choice(self.slots[0]), intended)
            return
        slot = await free.get()
        try:
            await self._sequence(self.random.choice(self.slots[slot]), intended)
        finally:
            free.put_nowait(slot)

    def _arrivals(self) -> Iterator[float]:
        rate = self.job.load.rate
        assert rate is not None
        begin = time.monotonic()
        due = begin + self.random.expovariate(rate)
        while due < begin + self.job.seconds:
            yield due
            due += self.random.expovariate(rate)


@contextlib.contextmanager
def _slots(job: Job, module: ModuleType) -> Iterator[list[list[list[_Request]]]]:
    """Return the requests of each slot. They are the same for all slots if requests contain the
    tensors. With shared memory, each slot has separate regions.
    """
    if job.memory == shared_memory.BODY:

        def in_body(golden: Golden) -> _Request:
            return _Request(tensors(module, golden), None, rows(golden, 1))

        yield [[[in_body(golden) for golden in sequence] for sequence in job.sequences]]
        return
    sync = job.access.client(job.protocol, job.url)
    with contextlib.ExitStack() as stack:
        stack.callback(sync.close)

        def in_memory(golden: Golden) -> _Request:
            regions = stack.enter_context(
                shared_memory.Regions(job.memory, sync, golden)
            )
            return _Request(
                regions.inputs(module), regions.outputs(module), rows(golden, 1)
            )

        slots = []
        for number in range(job.load.concurrency or SHARED_SLOTS):
            sequence = job.sequences[number % len(job.sequences)]
            slots.append([[in_memory(golden) for golden in sequence]])
        yield slots


async def _run(job: Job, slots: Sequence[Sequence[Sequence[_Request]]]) -> Samples:
    client = _connected(job)
    try:
        sender = _Sender(job, client, slots)
        cpu = time.process_time()
        wall = time.monotonic()
        await (sender.closed() if job.load.rate is None else sender.open())
        cpu = time.process_time() - cpu
        wall = time.monotonic() - wall
    finally:
        await client.close()
    clock = sender.clock
    return Samples(
        _floats(clock.intended),
        _floats(clock.sent),
        _floats(clock.completed),
        np.asarray(clock.rows, np.int64),
        dict(clock.errors),
        clock.example,
        clock.dropped,
        cpu,
        wall,
    )


def _floats(values: list[float]) -> NDArray[np.float64]:
    return np.asarray(values, np.float64)


def _connected(job: Job) -> Any:
    if job.protocol == "grpc":
        return job.access.grpc_aio(job.url)
    return job.access.http_aio(
        job.url,
        conn_limit=job.load.concurrency or MOST_IN_FLIGHT,
        conn_timeout=job.timeout,
    )


def _module(job: Job) -> ModuleType:
    if job.protocol == "grpc":
        from tritonclient import grpc

        return grpc  # type: ignore[no-any-return]
    from tritonclient import http

    return http  # type: ignore[no-any-return]


def main() -> None:
    """Run the job from standard input after a line signals that all processes are ready."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    job: Job = pickle.load(sys.stdin.buffer)
    with _slots(job, _module(job)) as slots:
        out.write(b"ready\n")
        out.flush()
        sys.stdin.buffer.readline()
        samples = asyncio.run(_run(job, slots))
    pickle.dump(samples, out)
    out.close()


if __name__ == "__main__":
    main()
