"""`trt-build verify`: a live endpoint against the goldens of the repository that it serves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli import options
from builder.cli.command import Command
from builder.cli.serve import report_crash
from builder.cli.terminal import Terminal

if TYPE_CHECKING:
    from builder.parity import GoldenResult, ModelParity, OutputComparison

COLUMNS = (
    *("model", "golden", "protocol", "answered by", "abs error", "at", "rel error", "at "),
    *("cosine", "median", "p95", ""),
)
NUMBERS = ("abs error", "rel error", "cosine", "median", "p95")


@click.command(
    "verify", cls=Command, short_help="Compare a live endpoint with the recorded answers."
)
@click.argument("repository", type=options.PATH)
@click.option("--url", metavar="HOST:PORT", help="The endpoint's HTTP address, as localhost:8000.")
@click.option(
    "--grpc-url", metavar="HOST:PORT", help="The endpoint's gRPC address, as localhost:8001."
)
@click.option("--serve", is_flag=True, help="Start a tritonserver for the occasion, on free ports.")
@click.option(
    "--engine", is_flag=True, help="Ask the plans themselves on this machine's GPU: no server."
)
@options.only
@click.option(
    "--repeat",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    help="Timed requests for each golden.",
)
@click.option(
    "--shared-memory",
    type=click.Choice(("none", "system", "cuda")),
    multiple=True,
    default=("none",),
    show_default=True,
    help=(
        "Where tensors lie: in the requests, or in shared memory of this host. May be given several"
        " times."
    ),
)
@click.option(
    "--timeout",
    type=options.SECONDS,
    default=60.0,
    show_default=True,
    help="Seconds to wait for an answer.",
)
@click.option(
    "--require",
    type=click.Choice(("plan",)),
    help="Fail for each model that torch answered in place of a plan.",
)
@click.pass_obj
def verify_command(
    terminal: Terminal,
    /,
    repository: Path,
    url: str | None,
    grpc_url: str | None,
    serve: bool,
    engine: bool,
    require: str | None,
    **settings: Any,
) -> int:
    """Ask every model of REPOSITORY every golden, over HTTP and gRPC, and compare the answers. With
    --engine no server is asked but each plan itself, in every profile; without a GPU that ends with
    exit code 4.

    Errors are the worst over all elements, with the index of the element; latencies are in
    milliseconds.
    """
    from builder import parity

    if serve and (url or grpc_url):
        raise click.UsageError(
            "--serve starts an endpoint of its own: leave --url and --grpc-url out"
        )
    if engine and (serve or url or grpc_url or settings["shared_memory"] != ("none",)):
        raise click.UsageError(
            "--engine asks no server: leave --serve, --url, --grpc-url and --shared-memory out"
        )
    asked = {"models": list(settings.pop("only")) or None, **settings}
    _interrupted_in_one_line()
    if engine:
        models = parity.verify_engines(repository, asked["models"], repeat=asked["repeat"])
    else:
        with (
            _serving(terminal, repository) if serve else nullcontext((url, grpc_url)) as (
                http,
                grpc,
            )
        ):
            models = parity.verify(repository, http, grpc, **asked)
    if require == "plan":
        models = [_by_plan_or_failed(model) for model in models]
    passed = all(model.passed for model in models)
    data = {
        "repository": repository,
        "passed": passed,
        "answered_by": answered_by(models),
        "models": [model.as_dict() for model in models],
    }
    terminal.result(data, lambda: show(terminal, models))
    return 0 if passed else 3


def _by_plan_or_failed(model: ModelParity) -> ModelParity:
    if model.by_plan:
        return model
    reason = f": {model.why}" if model.why else ""
    problem = f"--require plan: answered by {model.answered_by or 'unknown'}{reason}"
    return replace(model, problems=(*model.problems, problem))


def answered_by(models: Sequence[ModelParity]) -> dict[str, int]:
    """How many models each kind answered: "plan", "plan+torch", "torch", "unknown"."""
    counts = Counter(model.answered_by or "unknown" for model in models)
    return {kind: counts[kind] for kind in sorted(counts)}


def _interrupted_in_one_line() -> None:
    """Keep the loop beneath Triton's HTTP client from printing Ctrl-C as an error before it hands
    it on.
    """
    from gevent.hub import Hub  # type: ignore[import-untyped]

    Hub.NOT_ERROR = (*Hub.NOT_ERROR, KeyboardInterrupt)


def _serving(terminal: Terminal, repository: Path) -> Any:
    from contextlib import contextmanager

    from builder import serving

    @contextmanager
    def served() -> Any:
        with serving.serve(repository, http_port=0, grpc_port=0, metrics_port=0) as server:
            report_crash(terminal, server)
            yield server.http_url, server.grpc_url

    return served()


def show(terminal: Terminal, models: list[ModelParity]) -> None:
    """One row for each golden and protocol, then what is wrong."""
    terminal.table(
        COLUMNS,
        [row(model, result) for model in models for result in model.results],
        numbers=NUMBERS,
    )
    for model in models:
        if model.why:
            unexecuted = "plan not executed, " if model.plan_not_executed else ""
            terminal.line(f"{model.name}: {unexecuted}answered by {_who(model)}: {model.why}")
    for model in models:
        for problem in model.problems:
            terminal.line(f"FAILED {model.name}: {problem}", color="red")
        for result in model.results:
            for problem in result.problems:
                terminal.line(
                    f"FAILED {model.name}, {result.golden}, {result.protocol}: {problem}",
                    color="red",
                )
    passed = sum(model.passed for model in models)
    terminal.line(
        f"{passed} of {len(models)} models passed ({_kinds(models)})",
        color="green" if passed == len(models) else "red",
    )


SENTENCES = {
    "plan": "answered by a plan",
    "plan+torch": "answered by plans and torch",
    "torch": "answered by torch",
    "unknown": "without an answer that names its source",
}


def _kinds(models: list[ModelParity]) -> str:
    """`2 answered by a plan, 1 answered by torch`."""
    counts = answered_by(models)
    return ", ".join(f"{count} {SENTENCES.get(kind, kind)}" for kind, count in counts.items())


def _who(model: ModelParity) -> str:
    return f"{model.answered_by or 'unknown'}{f' ({model.device})' if model.device else ''}"


def row(model: ModelParity, result: GoldenResult) -> list[str]:
    """The worst output of one answer."""
    outputs = result.comparison.outputs if result.comparison else ()
    return [
        model.name,
        result.golden,
        result.protocol,
        _who(model),
        *_worst(outputs, "absolute"),
        *_worst(outputs, "relative"),
        _number(min((o.cosine for o in outputs if o.cosine is not None), default=None), ".7f"),
        _number(result.median_ms, ".2f"),
        _number(result.p95_ms, ".2f"),
        "ok" if result.passed else "FAILED",
    ]


def _worst(outputs: tuple[OutputComparison, ...], kind: str) -> tuple[str, str]:
    """The largest error of that kind, and `output[index]` of its element."""
    known = [output for output in outputs if getattr(output, kind) is not None]
    if not known:
        return "", ""
    worst = max(known, key=lambda output: float(getattr(output, kind)))
    index = getattr(worst, f"{kind}_at")
    place = "" if index is None else f"{worst.name}[{','.join(map(str, index))}]"
    return _number(getattr(worst, kind), ".2e"), place


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
