"""`trt-build verify`: compare a running server with the goldens of its repository."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import parity, report, store, triton
from builder.cli import options, verdicts
from builder.cli.command import command
from builder.cli.serve import report_crash
from builder.cli.terminal import Terminal
from builder.progress import Progress

if TYPE_CHECKING:
    from builder.cli.ladder import Source
    from builder.diagnosis import Ladder
    from builder.parity import ModelParity


@command(
    "verify",
    "trt-build verify model_repository --serve",
    "trt-build verify model_repository --url localhost:8000",
)
@click.argument("repository", type=options.PATH_OR_URL)
@options.endpoint
@options.flag(
    "--serve", help="Start tritonserver on free ports, and stop it afterwards."
)
@options.flag("--engine", help="Run the plans on this machine's GPU, without a server.")
@options.only
@options.count("--repeat", minimum=0, default=5, help="Timed requests for each golden.")
@options.shared_memory(
    multiple=True,
    default=("none",),
    help=(
        "How tensors are passed: in the requests, or in shared memory of this host. Repeatable."
    ),
)
@options.seconds("--timeout", 60.0, help="Seconds to wait for a response.")
@options.choice(
    "--require",
    values=("plan",),
    help="Fail for each model that torch ran instead of a plan.",
)
@options.path(
    "--require-signature",
    "--signature",
    "signature",
    metavar="PUBLIC_KEY",
    help="Fail for each model without a valid signature of this key.",
)
@options.flag(
    "--ladder",
    help="Compare every step from the original module to the endpoint; needs --models.",
)
@options.path(
    "--models",
    "files",
    metavar="MODELS",
    help="The source of the models for --ladder: a folder or a model file.",
)
@options.plugins
@options.confinement
@options.record
def verify_command(
    terminal: Terminal,
    /,
    repository: Path,
    require: str | None,
    signature: Path | None,
    record: bool,
    ladder: bool,
    files: Path | None,
    plugins: tuple[str, ...],
    isolate: bool,
    **settings: Any,
) -> int:
    """Send all goldens of each model of REPOSITORY to the server, over HTTP and gRPC, and compare
    the outputs. With --engine, run the plans themselves in every profile instead. This requires a
    GPU (exit code 4 without one).

    With --ladder, one line for each step shows where a difference begins. The steps are the
    original module, the lowered graph, each segment and network, and the engine (with a GPU). With
    --serve or --url the endpoint is the last step. It runs the model files of MODELS.

    The error is the largest over all elements, relative to its tolerance. Latencies are in
    milliseconds, over all timed requests. --verbose shows every response.
    """
    if (files or plugins) and not ladder:
        raise click.UsageError("--models and --plugin require --ladder")
    server_options = ServerOptions.take(settings)
    source = _source(ladder, files, plugins, isolate, server_options.engine)
    names = list(settings.pop("only")) or None
    unsigned = _unsigned(repository, signature, names, server_options.serve)
    if record:
        options.require_writable_results(repository, "verify")
    quiet_interrupts()
    models: list[ModelParity] = []
    if server_options.engine or server_options.has_endpoint or source is None:
        models = _compared(terminal, repository, server_options, names, settings)
    models = [_judged(model, unsigned, require) for model in models]
    ladders = _ladders(terminal, repository, names, source, models)
    verified = Verified(models, unsigned, ladders)
    _report(terminal, repository, verified, signature, record, source)
    return 0 if verified.passed else 3


@dataclass(frozen=True)
class Verified:
    """The results of all comparisons: `unsigned` has the reasons by model, and `ladders` is None
    without --ladder.
    """

    models: Sequence[ModelParity]
    unsigned: Mapping[str, str]
    ladders: Sequence[Ladder] | None

    @property
    def only_unsigned(self) -> list[str]:
        """The models without a valid signature that were not compared."""
        return sorted(set(self.unsigned) - {model.name for model in self.models})

    @property
    def passed(self) -> bool:
        """Whether every comparison and every signature passes."""
        outputs_pass = all(model.passed for model in self.models)
        breaks = any(ladder.breaks_at for ladder in self.ladders or ())
        return outputs_pass and not self.only_unsigned and not breaks

    def as_dict(self, signature: Path | None) -> dict[str, Any]:
        """JSON-able. `signature` is the key that signatures were compared with."""
        data: dict[str, Any] = {
            "passed": self.passed,
            "answered_by": verdicts.answered_by(self.models),
            "models": [model.as_dict() for model in self.models],
        }
        if self.ladders is not None:
            data["ladder"] = [ladder.as_dict() for ladder in self.ladders]
        if signature is not None:
            data["signatures"] = {"key": signature, "problems": dict(self.unsigned)}
        return data


@dataclass(frozen=True)
class ServerOptions:
    """Who answers: an endpoint, a server that is started for it, or the plans themselves."""

    url: str | None
    grpc_url: str | None
    serve: bool
    engine: bool

    @classmethod
    def take(cls, settings: dict[str, Any]) -> ServerOptions:
        """Take these options out of the command's settings. Raises UsageError."""
        names = ("url", "grpc_url", "serve", "engine")
        server_options = cls(**{name: settings.pop(name) for name in names})
        server_options.check(settings["shared_memory"])
        return server_options

    @property
    def has_endpoint(self) -> bool:
        """Whether a server is used."""
        return bool(self.serve or self.url or self.grpc_url)

    def check(self, shared_memory: tuple[str, ...]) -> None:
        """Raise UsageError for options that exclude each other."""
        if self.serve and (self.url or self.grpc_url):
            raise click.UsageError(
                "--serve starts its own server: remove --url and --grpc-url"
            )
        if self.engine and (self.has_endpoint or shared_memory != ("none",)):
            raise click.UsageError(
                "--engine uses no server: remove --serve, --url, --grpc-url and --shared-memory"
            )


def _source(
    ladder: bool,
    files: Path | None,
    plugins: tuple[str, ...],
    isolate: bool,
    engine: bool,
) -> Source | None:
    """The source for --ladder, None without it. Raises UsageError."""
    if not ladder:
        return None
    from builder.cli import ladder as ladders

    return ladders.source(files, plugins, isolate, engine=engine)


def _ladders(
    terminal: Terminal,
    repository: Path,
    names: Sequence[str] | None,
    source: Source | None,
    models: Sequence[ModelParity],
) -> Sequence[Ladder] | None:
    """The ladders of the models of `names`, or of all; None without --ladder."""
    if source is None:
        return None
    from builder.cli import ladder

    with terminal.progress() as progress:
        return ladder.run_ladders(repository, names, source, models, progress)


def _compared(
    terminal: Terminal,
    repository: Path,
    server_options: ServerOptions,
    names: Sequence[str] | None,
    settings: Mapping[str, Any],
) -> list[ModelParity]:
    """The models of `names`, or all, against their goldens."""
    with terminal.progress() as progress:
        if server_options.engine:
            repeat = settings["repeat"]
            return parity.verify_engines(
                repository, names, repeat=repeat, progress=progress
            )
        endpoint: AbstractContextManager[tuple[str | None, str | None]]
        if server_options.serve:
            endpoint = serving(
                terminal, repository, names, progress, settings["shared_memory"]
            )
        else:
            endpoint = nullcontext((server_options.url, server_options.grpc_url))
        with endpoint as (http, grpc):
            return parity.verify(
                repository, http, grpc, names, **settings, progress=progress
            )


def _report(
    terminal: Terminal,
    repository: Path,
    verified: Verified,
    signature: Path | None,
    record: bool,
    source: Source | None,
) -> None:
    """Show the results, and record them if requested."""
    for name in verified.only_unsigned:
        terminal.note(f"FAILED {name}: signature: {verified.unsigned[name]}")
    data = {"repository": repository, **verified.as_dict(signature)}
    if record:
        _record(repository, data, verified.models)
    terminal.result(
        data, lambda: _show(terminal, verified.models, verified.ladders or (), source)
    )


def _record(
    repository: Path, data: dict[str, Any], models: Sequence[ModelParity]
) -> None:
    """Record the results for `trt-build report`."""
    results = [{**model.as_dict(), "spread": model.spread()} for model in models]
    report.records.keep(repository, report.records.VERIFY, {**data, "models": results})
    if "ladder" in data:
        report.records.keep(
            repository, report.records.LADDER, {"models": data["ladder"]}
        )


def _show(
    terminal: Terminal,
    models: Sequence[ModelParity],
    ladders: Sequence[Ladder],
    source: Source | None,
) -> None:
    from builder.cli import ladder

    if source is None or (terminal.verbose and models):
        verdicts.show(terminal, models)
    if source is not None:
        ladder.show(terminal, ladders, source.models)


def _unsigned(
    repository: Path, key: Path | None, models: Sequence[str] | None, serve: bool
) -> dict[str, str]:
    """By model: why its signature, or that of one of its steps, is not valid."""
    if key is None:
        return {}

    if serve:  # unsigned models are not run
        triton.signatures.require(repository, key, models or ())
        return {}
    problems = triton.signatures.problems(repository, key, models or (), served=True)
    for folder in repository.iterdir():
        for step in sorted(store.step_names(folder) & set(problems)):
            problems.setdefault(folder.name, f"step {step}: {problems[step]}")
    return problems


def _judged(
    model: ModelParity, unsigned: Mapping[str, str], require: str | None
) -> ModelParity:
    """The model, with a problem if it fails --require or its signature is not valid."""
    problems = [*model.problems]
    if require == "plan" and not model.by_plan:
        reason = f": {model.why}" if model.why else ""
        answered_by = model.answered_by or "unknown"
        problems.append(f"--require plan: answered by {answered_by}{reason}")
    if model.name in unsigned:
        problems.append(f"signature: {unsigned[model.name]}")
    return replace(model, problems=tuple(problems))


def quiet_interrupts() -> None:
    """Keep the event loop of Triton's HTTP client from printing Ctrl-C as an error before it is
    raised.
    """
    from gevent.hub import Hub  # type: ignore[import-untyped]

    Hub.NOT_ERROR = (*Hub.NOT_ERROR, KeyboardInterrupt)


@contextmanager
def serving(
    terminal: Terminal,
    repository: Path,
    models: Sequence[str] | None = None,
    progress: Progress | None = None,
    memories: Sequence[str] = (),
) -> Iterator[tuple[str, str]]:
    """(HTTP, gRPC) addresses of a tritonserver on free ports that has loaded `models` with their
    steps, or all of the repository. Clients may use shared memory if `memories` has any.
    """
    if progress:
        progress("tritonserver", "start")
    with parity.serving_models(repository, models, memories) as server:
        report_crash(terminal, server)
        yield server.http_url, server.grpc_url
