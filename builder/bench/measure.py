"""Measures the models of a live endpoint at one load level after another."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tritonclient.utils import InferenceServerException

from builder.bench import processes, statistics
from builder.bench.job import Job, Load, Samples, Sequences, requests
from builder.bench.results import (
    FEW,
    LevelResult,
    Limit,
    ModelBench,
    client_limit,
    summarize,
)
from builder.errors import EnvironmentProblem, ServerError, UsageError, summary
from builder.parity import PublishedModel, served, shared_memory
from builder.progress import Progress, silent
from builder.serving import PLAIN, Access
from builder.store import shaped

SETTLE_SECONDS = 5.0
"""Seconds that the server may take to count an answered request."""
PROBE_SECONDS = 0.5
SEARCH_STEPS = 12
SEARCH_PRECISION = 0.05
"""The search for a rate ends when it is known to this relative precision."""
LONGEST = 60.0
"""The maximum seconds of a level whose percentile needs many requests."""
KEEPS_UP = 0.95
"""A rate is sustained only if this share of it is answered, less the noise of random arrivals."""


@dataclass(frozen=True)
class Options:
    """Load options: see `trt-build bench --help`. `limit` is (percentile, milliseconds).

    `sequences` replace the model's goldens, so that variants receive the same requests.
    """

    loads: Sequence[Load] = (Load(1), Load(2), Load(4), Load(8), Load(16))
    protocols: Sequence[str] = ("grpc",)
    memories: Sequence[str] = (shared_memory.BODY,)
    seconds: float = 5.0
    processes: int = 0
    file: Path | None = None
    goldens: Sequence[str] = ()
    timeout: float = 60.0
    limit: tuple[float, float] | None = None
    seed: int = 0
    sequences: Sequences | None = None


@dataclass(frozen=True)
class Endpoint:
    """The addresses of a server (host:port each, None if there is none), TLS and headers."""

    http: str | None
    grpc: str | None
    metrics: str | None = None
    access: Access = PLAIN

    def url(self, protocol: str) -> str:
        """The address for the protocol. Raises UsageError if it has none."""
        url = self.http if protocol == "http" else self.grpc
        if url is None:
            flag, other = "--grpc-url", "http"
            if protocol == "http":
                flag, other = "--url", "grpc"
            raise UsageError(
                f"{protocol} has no address",
                fix=f"pass {flag} HOST:PORT, --protocol {other}, or --serve",
            )
        return url


def bench(
    repository: Path,
    endpoint: Endpoint,
    models: Sequence[str] | None = None,
    options: Options | None = None,
    progress: Progress | None = None,
) -> list[ModelBench]:
    """Benchmark each model of `models`, or all except steps of ensembles, over each protocol and
    kind of memory.

    The goldens determine the sizes. Raises UsageError for an unknown model, or if there is nothing
    to send; EnvironmentProblem if no server answers. A model that fails has `problem`.
    """
    options = options or Options()
    shared_memory.check(options.memories)
    results = []
    for name in models or served.without_steps(repository):
        served.chosen(repository, [name])
        for protocol in options.protocols:
            for memory in options.memories:
                run = _run(
                    repository / name, endpoint, protocol, memory, options, progress
                )
                results.append(run.all())
    return results


@contextlib.contextmanager
def session(
    folder: Path, endpoint: Endpoint, options: Options
) -> Iterator[Callable[[Load, float], LevelResult]]:
    """Return a function that measures the published model in `folder` at a load for some seconds.

    It uses the first protocol and kind of memory of `options`. Raises ServerError if the model does
    not answer, and the errors of `bench`.
    """
    run = _run(
        folder, endpoint, options.protocols[0], options.memories[0], options, None
    )
    with _statistics_client(run.protocol, run.url, endpoint.access) as client:
        try:
            run.probe(client)
        except _Failed as failure:
            raise ServerError(
                f"model {folder.name!r} cannot be measured: {failure}"
            ) from failure
        yield lambda load, seconds: run.level(client, load, seconds)


def _run(
    folder: Path,
    endpoint: Endpoint,
    protocol: str,
    memory: str,
    options: Options,
    progress: Progress | None,
) -> _Run:
    with shaped(folder):
        model = served.read(folder)
        return _Run(model, endpoint, protocol, memory, options, progress or silent)


@dataclass(eq=False)
class _Run:
    """Measures the levels of one model over one protocol."""

    model: PublishedModel
    endpoint: Endpoint
    protocol: str
    memory: str
    options: Options
    progress: Progress

    def __post_init__(self) -> None:
        options = self.options
        self.url = self.endpoint.url(self.protocol)
        self.sequences = options.sequences or requests(
            self.model, options.file, options.goldens
        )
        self.processes = options.processes or 1
        self.most = options.processes or max(1, (os.cpu_count() or 1) // 2)

    def all(self) -> ModelBench:
        names = [sequence[0].name.split(".")[0] for sequence in self.sequences]
        sizes = tuple(dict.fromkeys(names))
        result = ModelBench(self.model.name, self.protocol, self.memory, sizes, ())
        try:
            with _statistics_client(
                self.protocol, self.url, self.endpoint.access
            ) as client:
                self.probe(client)
                loads = [load for load in self.options.loads if self._possible(load)]
                levels = tuple(self.level(client, load) for load in loads)
                result = replace(result, levels=levels)
                if self.options.limit:
                    result = replace(result, limit=self._highest(client, levels))
        except _Failed as failure:
            return replace(result, problem=str(failure))
        return result

    def _possible(self, load: Load) -> bool:
        """Whether the server can keep enough sequences open for the load. Further sequences would
        only wait.
        """
        most = int(self.model.config.sequence_batching.oldest.max_candidate_sequences)
        return not (self.model.keeps_state and most and (load.concurrency or 0) > most)

    def probe(self, client: Any) -> None:
        """Send a request before the load. Raises if the model does not answer."""
        try:
            if not client.is_model_ready(self.model.name):
                raise _Failed("the server does not have it ready")
        except (InferenceServerException, OSError) as error:
            raise EnvironmentProblem(
                f"no Triton server responds over {self.protocol} at {self.url}: {summary(error)}",
                fix="run trt-build serve, pass --serve, or correct the address",
            ) from error
        level = self.level(client, Load(1), PROBE_SECONDS)
        if not level.requests:
            kind, example = next(iter(level.examples.items()), ("no answer", ""))
            raise _Failed(f"no request got a response: {kind}: {example}")

    def level(
        self, client: Any, load: Load, seconds: float | None = None
    ) -> LevelResult:
        """Measure one load. It is repeated with more client processes while these limit the
        result.
        """
        seconds = seconds or self.options.seconds
        while True:
            self.progress(self.model.name, f"{self.protocol}, {load}, {seconds:g} s")
            result = self._level(client, load, seconds)
            width = load.concurrency or self.most
            more = min(self.processes * 2, self.most, width)
            if result.client_limited is None or more <= self.processes:
                return result
            self.processes = more

    def _level(self, client: Any, load: Load, seconds: float) -> LevelResult:
        job = self._job(load, seconds)
        watched = [self.model.name, *self._steps()]
        before: dict[str, statistics.Counts] = {}

        def begin() -> None:
            before.update({name: statistics.counts(client, name) for name in watched})

        samples = processes.run(job, self.processes, begin)
        completed = sum(process_samples.completed.size for process_samples in samples)
        counted = self._settled_counts(client, before[self.model.name], completed)
        steps = {
            name: statistics.counts(client, name).since(before[name]).as_dict()
            for name in self._steps()
        }
        measured = summarize(samples, seconds)
        return LevelResult(
            load=str(load),
            concurrency=load.concurrency,
            rate=load.rate,
            requests=completed,
            server=counted.as_dict(),
            counts_agree=counted.success == completed,
            steps=steps,
            gpus=statistics.gpu(self.endpoint.metrics),
            **_client_figures(samples, measured, completed),
            **measured,
        )

    def _job(self, load: Load, seconds: float) -> Job:
        return Job(
            *(
                self.protocol,
                self.url,
                self.model.name,
                self.sequences,
                self.model.keeps_state,
            ),
            *(self.memory, load, seconds, self.options.timeout, self.options.seed),
            self.endpoint.access,
        )

    def _steps(self) -> list[str]:
        return [step.model_name for step in self.model.config.ensemble_scheduling.step]

    def _settled_counts(
        self, client: Any, before: statistics.Counts, completed: int
    ) -> statistics.Counts:
        """Return the server's counts after they include all responses: it counts a request after
        sending the response.
        """
        until = time.monotonic() + SETTLE_SECONDS
        while True:
            counts = statistics.counts(client, self.model.name).since(before)
            if counts.success >= completed or time.monotonic() > until:
                return counts
            time.sleep(0.02)

    def _highest(self, client: Any, levels: Sequence[LevelResult]) -> Limit:
        """Find the highest rate within the limit by bisection below the throughput of the closed
        loop.
        """
        assert self.options.limit is not None
        percent, most = self.options.limit
        name = f"p{percent:g}"
        trials: list[dict[str, Any]] = []

        def holds(rate: float) -> bool:
            load = Load(rate=rate)
            seconds = self.options.seconds
            level = long_enough(partial(self.level, client), load, seconds, percent)
            latency = level.latency_ms.get(name)
            ms = None if latency is None else latency.value
            throughput = level.throughput.value
            fast = ms is not None and ms <= most
            complete = not level.errors and not level.dropped
            least = KEEPS_UP * rate - _noise(rate, level.seconds)
            holds_limit = fast and complete and throughput >= least
            trial = {
                "rate": rate,
                "ms": ms,
                "throughput": throughput,
                "held": holds_limit,
            }
            trials.append(trial)
            return holds_limit

        high = max((level.throughput.value for level in levels), default=0.0) or 100.0
        least = least_rate(percent)
        best = search_rate(holds, max(high, least), least)
        return Limit(name, most, best, tuple(trials))


def long_enough(
    measure: Callable[[Load, float], LevelResult],
    load: Load,
    seconds: float,
    percentile: float,
) -> LevelResult:
    """Return the result of `measure` after `seconds`.

    It is repeated for longer while it has too few requests for the percentile, unless that would
    take more than LONGEST.
    """
    level = measure(load, seconds)
    enough_requests = _enough_requests(percentile)
    while level.latency_ms.get(f"p{percentile:g}") is None and level.requests:
        needed = max(seconds * enough_requests / level.requests, 2 * seconds)
        if needed > LONGEST:
            break
        seconds = needed
        level = measure(load, seconds)
    return level


def _enough_requests(percentile: float) -> float:
    return 1.3 * FEW / (1 - percentile / 100)


def least_rate(percentile: float) -> float:
    """The lowest rate, in requests per second, with enough requests for the percentile in
    LONGEST.
    """
    return _enough_requests(percentile) / LONGEST


def search_rate(
    holds: Callable[[float], bool], start: float, least: float = 0.0
) -> float | None:
    """Return the highest sustained rate; None if none was found. `start` is the first rate. Rates
    below `least` cannot be measured and are not tried.
    """
    low = 0.0
    high = float("inf")
    rate = start
    for _ in range(SEARCH_STEPS):
        if holds(rate):
            low = rate
        else:
            high = rate
        if low and high - low <= SEARCH_PRECISION * low:
            break
        if high <= least:
            break
        rate = low * 1.5 if high == float("inf") else max((low + high) / 2, least)
    return low or None


def _noise(rate: float, seconds: float) -> float:
    """Two standard deviations of the number of Poisson arrivals per second."""
    if seconds:
        return 2 * math.sqrt(rate / seconds)
    return 0.0


class _Failed(Exception):
    """One model cannot be measured. The others continue."""


def _client_figures(
    samples: Sequence[Samples], measured: dict[str, Any], completed: int
) -> dict[str, Any]:
    """The fields of LevelResult about the client processes: `client_cpu` is the maximum share of a
    core that one used, and `client_limited` why more of them might change the result.
    """
    cpu_seconds = sum(process_samples.cpu_seconds for process_samples in samples)
    cpu = max(
        process_samples.cpu_seconds / max(process_samples.wall_seconds, 1e-9)
        for process_samples in samples
    )
    examples: dict[str, str] = {}
    for process_samples in samples:
        examples |= process_samples.example
    latency = measured["latency_ms"]
    median = latency["p50"].value if latency else 0.0
    delay = measured["send_delay_ms"]
    cores = os.cpu_count() or 1
    return {
        "errors": _total(process_samples.errors for process_samples in samples),
        "examples": examples,
        "dropped": sum(process_samples.dropped for process_samples in samples),
        "processes": len(samples),
        "client_cpu": cpu,
        "client_ms": 1e3 * cpu_seconds / max(completed, 1),
        "client_limited": client_limit(cpu, len(samples), delay, median, cores),
    }


def _total(counts_of_each: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for counts in counts_of_each:
        for kind, count in counts.items():
            total[kind] = total.get(kind, 0) + count
    return total


@contextlib.contextmanager
def _statistics_client(protocol: str, url: str, access: Access) -> Iterator[Any]:
    client = access.client(protocol, url)
    try:
        yield client
    finally:
        client.close()
