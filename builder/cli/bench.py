"""`trt-build bench`: throughput and latency of a live endpoint under load."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import report
from builder.cli import options, verify
from builder.cli.command import command
from builder.cli.terminal import Terminal
from builder.printable import counted
from builder.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.bench import Change, Endpoint, LevelResult, ModelBench
    from builder.bench import Limit as MeasuredLimit

COLUMNS = ("load", "req/s", "p50", "p90", "p95", "p99", "p99.9", "errors", "client CPU")
SERVER_COLUMNS = ("load", "queue", "input", "infer", "output", "batches", "of rows")
CHANGE_COLUMNS = (
    "model",
    "protocol",
    "load",
    "figure",
    "before",
    "after",
    "change",
    "verdict",
)
SIZES_SHOWN = 3
DEFAULT_CONCURRENCY = "1,2,4,8,16"


class Numbers(click.ParamType[tuple[float, ...]]):
    """Positive numbers separated by commas. With `zero`, 0 is also allowed."""

    name = "N,N,..."

    def __init__(self, *, zero: bool = False) -> None:
        self.zero = zero

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(
                float(part) for part in str(value).split(",") if part.strip()
            )
        except ValueError:
            numbers = ()
        allowed = (0 < number < 1e7 or (self.zero and not number) for number in numbers)
        if not numbers or not all(allowed):
            self.fail(
                f"{value!r} is not a list of positive numbers, such as 1,2,4",
                param,
                ctx,
            )
        return numbers


class Limit(click.ParamType[tuple[float, float]]):
    """A percentile of latency and its limit: `p99=20ms`."""

    name = "PERCENTILE=TIME"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        if isinstance(value, tuple):
            return value[0], value[1]
        match = re.fullmatch(r"p(50|90|95|99|99\.9)=(\d+(?:\.\d+)?)(ms|s)", str(value))
        if match is None:
            self.fail(f"{value!r} is not a limit, such as p99=20ms", param, ctx)
        return float(match[1]), float(match[2]) * (1e3 if match[3] == "s" else 1.0)


def numbers(name: str, *, help: str, zero: bool = False) -> options.Decorator:
    """An option for a list of numbers."""
    return click.option(name, type=Numbers(zero=zero), help=help)


def limit(*, help: str) -> options.Decorator:
    """`--limit`: a percentile of latency and its limit."""
    return click.option("--limit", type=Limit(), help=help)


@command(
    "bench",
    "trt-build bench model_repository --serve --concurrency 1,8",
    "trt-build bench model_repository --url localhost:8000 --limit p99=20ms",
)
@click.argument("repository", type=options.PATH)
@options.url
@options.grpc_url
@options.metrics_url
@options.access
@options.flag("--serve", help="Start a tritonserver for the benchmark.")
@options.only
@numbers(
    "--concurrency",
    help=f"Concurrent requests of each load level (closed loop).  [default: {DEFAULT_CONCURRENCY}]",
)
@numbers(
    "--rate",
    help="Requests per second of each load level, with Poisson arrivals (open loop).",
)
@limit(
    help="Find the highest rate whose latency stays within this limit, such as p99=20ms.",
)
@options.protocol(
    "protocols",
    multiple=True,
    default=("grpc",),
    help="The client's protocol. Repeatable.",
)
@options.shared_memory(
    "memories",
    multiple=True,
    default=("none",),
    help="How tensors are passed. Repeatable.",
)
@options.goldens
@options.requests
@options.seconds(
    "--seconds", 5.0, help="Duration of each level, including its warm-up."
)
@options.count(
    "--processes",
    minimum=0,
    default=0,
    help="Client processes. 0 adds processes while they limit the result, up to half of the cores.",
)
@options.seconds("--timeout", 60.0, help="Seconds until a request counts as an error.")
@options.path("--baseline", help="Write the results here.")
@options.path("--compare", help="Compare with what --baseline wrote.")
@options.record
def bench_command(terminal: Terminal, /, repository: Path, **settings: Any) -> int:
    """Put load on each model of REPOSITORY at a running server. Report throughput, latency and the
    server's time for each request. Latencies are in milliseconds. In an open loop they count from
    the time at which a request was due.

    Exit codes: 0 success, 1 a model could not be measured, 2 no load of --compare was measured, 3
    worse than the file of --compare, 4 no server.
    """
    from builder.bench import baseline, host, measure

    chosen = _options(settings)
    before = baseline.read(settings["compare"]) if settings["compare"] else None
    urls = settings["url"], settings["grpc_url"], settings["metrics_url"]
    _require_one_endpoint(settings["serve"], any(urls[:2]))
    _require_writable(settings["baseline"], repository, settings["record"])
    verify.quiet_interrupts()
    with (
        terminal.progress() as progress,
        _endpoint(terminal, repository, urls, settings, progress) as endpoint,
    ):
        benches = measure.bench(
            repository, endpoint, list(settings["only"]) or None, chosen, progress
        )
    data: dict[str, Any] = {"repository": repository, "host": host()}
    data["models"] = list(map(asdict, benches))
    changes = _compare(data, before) if before else []
    _record(data, settings["baseline"], repository, settings["record"])
    terminal.result(data, lambda: show(terminal, benches, changes))
    for level in data.get("not_compared", ()):
        terminal.note(f"not compared: {level}: only one of the two runs measured it")
    return _exit_code(benches, changes, before is not None)


def _compare(data: dict[str, Any], before: dict[str, Any]) -> list[Change]:
    """The changes since the document `before`. Adds them to `data`, and the levels that only one of
    the two has.
    """
    from builder.bench import baseline

    changes = baseline.compare(before["models"], data["models"])
    data["compared"] = [asdict(change) for change in changes]
    data["not_compared"] = baseline.unmatched(before["models"], data["models"])
    return changes


def _exit_code(
    benches: Sequence[ModelBench], changes: Sequence[Change], compared: bool
) -> int:
    from builder.bench import baseline

    if any(bench.problem for bench in benches):
        return 1
    if compared and not changes:
        return 2
    return 3 if any(change.verdict == baseline.WORSE for change in changes) else 0


def _options(settings: dict[str, Any]) -> Any:
    from builder.bench import Load, Options

    concurrency = settings["concurrency"]
    if concurrency is None and settings["rate"] is None:
        concurrency = tuple(map(float, DEFAULT_CONCURRENCY.split(",")))
    if any(number != int(number) for number in concurrency or ()):
        raise click.UsageError("--concurrency takes whole numbers")
    closed = [Load(int(number)) for number in concurrency or ()]
    opened = [Load(rate=number) for number in settings["rate"] or ()]
    names = (
        "protocols",
        "memories",
        "seconds",
        "processes",
        "file",
        "goldens",
        "timeout",
        "limit",
    )
    return Options(loads=(*closed, *opened), **{name: settings[name] for name in names})


@contextmanager
def _endpoint(
    terminal: Terminal,
    repository: Path,
    urls: tuple[str | None, str | None, str | None],
    settings: dict[str, Any],
    progress: Progress,
) -> Iterator[Endpoint]:
    from builder.bench import Endpoint

    if not settings["serve"]:
        yield Endpoint(*urls, access=settings["access"])
        return
    with verify.serving(
        terminal, repository, list(settings["only"]), progress, settings["memories"]
    ) as (
        http,
        grpc,
    ):
        yield Endpoint(http, grpc)


def _require_one_endpoint(serve: bool, address: bool) -> None:
    """Raise UsageError unless one of --serve and an address is given."""
    from builder.parity import missing_address

    if serve and address:
        raise click.UsageError("pass --serve or the address of an endpoint, not both")
    if not serve and not address:
        raise missing_address("bench", ", or --serve")


def _require_writable(file: Path | None, repository: Path, record: bool) -> None:
    """Raise EnvironmentProblem if the results cannot be written where they are requested."""
    if file is not None:
        report.records.require_writable(file)
    if record:
        options.require_writable_results(repository, report.records.BENCH)


def _record(
    data: dict[str, Any], file: Path | None, repository: Path, record: bool
) -> None:
    if file:
        report.records.write(file, data)
    if record:
        measured = [{**model, "host": data["host"]} for model in data["models"]]
        report.records.keep(
            repository, report.records.BENCH, {**data, "models": measured}
        )


def show(
    terminal: Terminal, benches: Sequence[ModelBench], changes: Sequence[Change]
) -> None:
    """Print each model's levels, the server's statistics, and the comparison."""
    for bench in benches:
        _show_model(terminal, bench)
    if changes:
        _show_changes(terminal, changes)


def _show_model(terminal: Terminal, bench: ModelBench) -> None:
    memory = ""
    if bench.memory != "none":
        memory = f", {bench.memory} shared memory"
    sizes = ", ".join(bench.sizes)
    terminal.line(
        f"{bench.name}: {bench.protocol}{memory}; latency in ms; requests: {sizes}",
        bold=True,
    )
    if bench.problem:
        terminal.line(f"FAILED {bench.name}: {bench.problem}", color="red")
        return
    rows = [_level(level) for level in bench.levels]
    terminal.table(COLUMNS, rows, numbers=COLUMNS[1:])
    server_rows = [_server(level) for level in bench.levels]
    terminal.line("  server, ms for each request:")
    terminal.table(SERVER_COLUMNS, server_rows, numbers=SERVER_COLUMNS[1:6])
    for level in bench.levels:
        for text in remarks(level):
            terminal.line(f"{level.load}: {text}")
    if bench.limit:
        _show_limit(terminal, bench.limit)


def _show_limit(terminal: Terminal, limit: MeasuredLimit) -> None:
    rate = "no rate"
    if limit.rate is not None:
        rate = f"{limit.rate:.1f} requests/s"
    terminal.line(
        f"highest rate with {limit.percentile} <= {limit.ms:g} ms: {rate}"
        f" ({counted(len(limit.trials), 'trial')})"
    )
    if limit.rate is None and (reason := _too_few_requests(limit)):
        terminal.line(f"{reason}: use a lower percentile, such as p90")


def _too_few_requests(limit: MeasuredLimit) -> str | None:
    """Why lower rates were not tried, or no rate could be measured."""
    from builder.bench import LONGEST, least_rate

    if all(trial["ms"] is None for trial in limit.trials):
        return f"too few requests in {LONGEST:g} s for {limit.percentile}"
    least = least_rate(float(limit.percentile.removeprefix("p")))
    if min(trial["rate"] for trial in limit.trials) > least:
        return None
    return (
        f"rates below {least:.3g} requests/s need more than {LONGEST:g} s for"
        f" {limit.percentile}"
    )


def remarks(level: LevelResult) -> Iterator[str]:
    """Warnings that limit how far the figures of the level can be trusted."""
    for kind, count in level.errors.items():
        yield f"{count} errors {kind}: {level.examples.get(kind, '')}"
    from builder.bench import OWN_SHARE

    if level.dropped:
        yield f"{level.dropped} requests were not sent: too many were in flight"
    if not level.steady:
        yield "no steady state: measure longer with --seconds"
    if level.client_limited:
        yield f"the client limits this result: {level.client_limited}"
    median = level.latency_ms.get("p50")
    if median and level.client_ms > OWN_SHARE * median.value:
        yield f"the client's own work is {level.client_ms:.2f} ms of each request"
    if not level.counts_agree:
        yield (
            f"Triton counted {level.server['success']} requests, the client {level.requests}:"
            " other clients use this model"
        )


def _level(level: LevelResult) -> list[str]:
    half = (level.throughput.high - level.throughput.low) / 2
    latencies = (level.latency_ms.get(name) for name in COLUMNS[2:7])
    return [
        level.load,
        f"{level.throughput.value:.0f} ± {half:.0f}",
        *("-" if latency is None else f"{latency.value:.2f}" for latency in latencies),
        str(sum(level.errors.values())),
        f"{level.client_cpu * 100:.0f} %",
    ]


def _server(level: LevelResult) -> list[str]:
    times = level.server["ms"]
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    sizes = level.server["batch_sizes"]
    most = sorted(sizes, key=lambda size: -sizes[size])[:SIZES_SHOWN]
    counts = ", ".join(f"{sizes[size]} x {size}" for size in sorted(most, key=int))
    more = ""
    if len(sizes) > SIZES_SHOWN:
        more = f", {len(sizes) - SIZES_SHOWN} more"
    return [
        level.load,
        *(f"{times[part]:.2f}" for part in parts),
        str(level.server["executions"]),
        f"{counts}{more}",
    ]


def _show_changes(terminal: Terminal, changes: Sequence[Change]) -> None:
    from builder.bench import SAME

    terminal.line("compared with the baseline:", bold=True)
    differing = [change for change in changes if change.verdict != SAME]
    listed = changes if terminal.verbose else differing
    if listed:
        rows = [_change(change) for change in listed]
        terminal.table(CHANGE_COLUMNS, rows, numbers=CHANGE_COLUMNS[4:7])
    same = len(changes) - len(differing)
    terminal.line(f"{same} of {len(changes)} figures: no difference")


def _change(change: Change) -> list[str]:
    return [
        change.model,
        change.protocol,
        change.load,
        change.figure,
        f"{change.before:.2f}",
        f"{change.after:.2f}",
        f"{change.share:+.0%}",
        change.verdict,
    ]
