"""`trt-build tune`: find the configuration that serves a model best under load."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import parity, report, tuning
from builder.cli import options
from builder.cli.bench import limit, numbers
from builder.cli.command import command
from builder.cli.terminal import Terminal, command_line
from builder.cli.verify import quiet_interrupts
from builder.errors import EnvironmentProblem, TrtBuildError
from builder.progress import Progress

if TYPE_CHECKING:
    from builder.errors import TrtBuildError
    from builder.manifest import ModelSpec
    from builder.repository import Settings
    from builder.tuning import Trial, Tuned, TuneOptions

COLUMNS = ("trial", "configuration", "by", "req/s", "p50", "p99", "result")
AS_IS = "as in the manifest"
NO_LIMIT = 3
"""Exit code if no configuration keeps the limit."""


class Names(click.ParamType[tuple[str, ...]]):
    """A comma-separated subset of the names."""

    name = "names"

    def __init__(self, *names: str) -> None:
        self.names = names

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """`[none|half],...`, because click's own form is in capital letters."""
        return f"[{'|'.join(self.names)}],..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(part.strip() for part in str(value).split(","))
        if unknown := [name for name in names if name not in self.names]:
            self.fail(f"{unknown[0]!r} is none of {', '.join(self.names)}", param, ctx)
        return names


@command(
    "tune",
    "trt-build tune model_repository --models models --limit p99=20ms",
)
@click.argument("repository", type=options.PATH)
@options.path(
    "--models",
    required=True,
    metavar="MODELS",
    help="The source of REPOSITORY: the folder with the models and their manifests.",
)
@options.only
@limit(help="The latency limit that each configuration must keep, such as p99=20ms.")
@click.option(
    "--rate",
    type=options.POSITIVE,
    metavar="N",
    help="Find the lowest latency at this many requests per second (Poisson arrivals).",
)
@options.choice(
    "--maximize",
    values=("throughput",),
    help="Find the highest throughput. Default without --rate.",
)
@options.count(
    "--trials", default=20, help="Maximum number of configurations to measure."
)
@options.seconds(
    "--seconds",
    3.0,
    help="Duration of each load level. It is longer if a percentile needs more requests.",
)
@numbers(
    "--instances",
    help="Instance counts to try. [default: 1 to the number of cores, at most 4]",
)
@numbers(
    "--max-batch",
    help="Maximum batch sizes to try. Afterwards clients cannot send larger requests. "
    "[default: that of the manifest]",
)
@numbers(
    "--queue-delay",
    zero=True,
    help="Queue delays to try, in microseconds. [default: 0,200,1000,5000 up to half of --limit]",
)
@click.option(
    "--preferred",
    type=Names("none", "half", "full"),
    help="Preferred batch sizes to try: none, half or all of the maximum. [default: none,half]",
)
@click.option("--profiles", type=Names("one", "static"), help="Profiles to try.")
@click.option(
    "--graphs",
    type=Names("none", "full"),
    help="Use of CUDA graphs in Triton's TensorRT backend to try.",
)
@click.option(
    "--layouts",
    type=Names("fused", "ensemble"),
    help="Layouts of partitioned models to try.",
)
@click.option("--runtimes", type=Names("plan", "torch"), help="Runtimes to try.")
@options.flag("--allow-torch", help="Choose torch if it is faster than the plan.")
@options.protocol(default="grpc", help="The client's protocol.")
@options.shared_memory("memory", default="none", help="How tensors are passed.")
@options.goldens
@options.requests
@options.flag("--dry-run", help="Write no manifest.")
@options.flavor
@options.serve_as
@options.store
@options.plugins
def tune_command(
    terminal: Terminal,
    /,
    repository: Path,
    models: Path,
    only: tuple[str, ...],
    dry_run: bool,
    **arguments: Any,
) -> int:
    """Serve variants of each model under load, and write the best configuration into its manifest,
    with the measurements as comments. Each variant is built as by `repo`, and loaded into a
    tritonserver that this command starts. Latencies are in milliseconds.

    All measurements are kept in REPOSITORY.results/tune.json. A configuration is written only if it
    is 5 % better than that of the manifest in each of two further measurements.

    Exit codes: 0 success, 1 a model could not be tuned, 3 no configuration keeps the limit, 4 no
    server.
    """
    chosen = _options(arguments)
    settings = _settings(arguments, only)
    specs = settings.specs(models)
    parity.served.chosen(repository, [spec.name for spec in specs])
    if not dry_run:
        _check_manifests(specs)
    quiet_interrupts()
    entries: list[dict[str, Any]] = []
    for spec in specs:
        tuned, error = _tuned(terminal, spec, chosen, settings, repository)
        if tuned is None:
            entries.append(_failed(terminal, spec.name, error))
            continue
        manifest = None if dry_run else spec.manifest
        entries.append(_result(terminal, tuned, manifest, repository, models))
    terminal.result({"repository": repository, "models": entries}, lambda: None)
    return _exit_code(entries)


def _check_manifests(specs: Iterable[ModelSpec]) -> None:
    """Raise UsageError for a manifest that the best configuration could not be written into."""
    from builder.manifest import editing

    for spec in specs:
        if spec.manifest is not None:
            editing.check(spec.manifest)


def _exit_code(entries: list[dict[str, Any]]) -> int:
    if any(entry["error"] for entry in entries):
        return 1
    if any(entry["verdict"] == tuning.UNMET for entry in entries):
        return NO_LIMIT
    return 0


def _result(
    terminal: Terminal,
    tuned: Tuned,
    manifest: Path | None,
    repository: Path,
    models: Path,
) -> dict[str, Any]:
    """Write one model's result into its manifest, if `manifest` is given. Record and show it."""
    written = bool(tuned.changes) and manifest is not None
    if written:
        written = _write_to_manifest(manifest, tuned, repository)
    entry = {**asdict(tuned), "error": None, "written": written}
    _record(repository, entry)
    if not terminal.as_json:
        rebuild = command_line("trt-build", "repo", models, "--out", repository)
        show(terminal, tuned, written, rebuild)
    return entry


def _options(arguments: dict[str, Any]) -> TuneOptions:
    if arguments["rate"] and arguments["maximize"]:
        raise click.UsageError("--rate and --maximize exclude each other: choose one")
    percentile, ms = arguments["limit"] or (99.0, None)
    values = tuning.Values(
        instances=_integers("--instances", arguments["instances"]),
        max_batch=_integers("--max-batch", arguments["max_batch"]),
        queue_delay_us=_integers("--queue-delay", arguments["queue_delay"]),
        preferred=arguments["preferred"] or (),
        profiles=arguments["profiles"] or (),
        graphs=arguments["graphs"] or (),
        layout=arguments["layouts"] or (),
        runtime=arguments["runtimes"] or (),
    )
    names = (
        "trials",
        "seconds",
        "protocol",
        "memory",
        "file",
        "goldens",
        "allow_torch",
    )
    return tuning.TuneOptions(
        tuning.Goal(percentile, ms, arguments["rate"]),
        values,
        **{name: arguments[name] for name in names},
    )


def _integers(flag: str, numbers: tuple[float, ...] | None) -> tuple[int, ...]:
    if any(number != int(number) for number in numbers or ()):
        raise click.UsageError(f"{flag} takes whole numbers")
    return tuple(int(number) for number in numbers or ())


def _settings(arguments: dict[str, Any], only: tuple[str, ...]) -> Settings:
    from builder.repository import Settings

    names = ("flavor", "serve_as", "store", "plugins")
    return Settings(only=only, **{name: arguments[name] for name in names})


def _failed(
    terminal: Terminal, name: str, error: TrtBuildError | None
) -> dict[str, Any]:
    """Print the error of a model, and return its entry in the results."""
    terminal.failure(f"{name}: {error}", None)
    return {"name": name, "error": error.as_dict() if error else None}


def _tuned(
    terminal: Terminal,
    spec: Any,
    chosen: TuneOptions,
    settings: Settings,
    repository: Path,
) -> tuple[Tuned | None, TrtBuildError | None]:
    try:
        with terminal.progress() as progress:
            tuned = tuning.tune(
                spec,
                chosen,
                settings,
                progress=progress,
                on_trial=_recorder(repository, spec.name, chosen, progress),
            )
    except EnvironmentProblem:
        raise
    except TrtBuildError as error:
        return None, error
    return tuned, None


def _recorder(
    repository: Path, name: str, chosen: TuneOptions, progress: Progress
) -> Callable[[Trial], None]:
    """Stores each trial when it is measured, so that an interrupted search keeps its trials."""
    trials: list[Any] = []

    def record(trial: Trial) -> None:
        trials.append(asdict(trial))
        entry = {
            "name": name,
            "goal": str(chosen.goal),
            "finished": False,
            "trials": trials,
        }
        _record(repository, entry)
        changed = _changed_settings(trial.configuration, trials[0]["configuration"])
        figures = (
            f"{_figure(trial, 'req/s')} requests/s, p99 {_figure(trial, 'p99')} ms"
        )
        progress(
            name,
            f"finished: trial {len(trials)}: {changed}: {figures}, {_outcome(trial)}",
        )

    return record


def _record(repository: Path, entry: dict[str, Any]) -> None:
    report.records.keep(repository, report.records.TUNE, {"models": [entry]})


def _write_to_manifest(manifest: Path | None, tuned: Tuned, repository: Path) -> bool:
    from builder.manifest import editing

    assert manifest is not None  # tune() has already refused a model without one
    return editing.edit(manifest, tuned.changes, notes(tuned, repository))


def notes(tuned: Tuned, repository: Path) -> list[str]:
    """The measurements, one line each."""
    host = f"{tuned.host['cores']} cores ({tuned.host['cpu']})"
    device = host
    if tuned.host["gpu"]:
        device = f"{host}, {tuned.host['gpu']}"
    return [
        f"{datetime.date.today().isoformat()} by trt-build tune, on {device}",
        f"goal: {tuned.goal}; {len(tuned.trials)} of {tuned.configurations} configurations tried",
        f"chosen: {_changed_settings(tuned.best, tuned.default)}",
        f"{_change(tuned)}; requests: {', '.join(tuned.requests)}",
        f"all trials: {repository.name}.results/tune.json",
    ]


def _change(tuned: Tuned) -> str:
    """The scores of the default and of the best configuration, as text."""
    unit = "ms" if "lowest" in tuned.goal else "requests/s"
    after = "none"
    if tuned.after is not None:
        after = f"{tuned.after:.4g} {unit}"
    if tuned.before is None:
        default = [
            trial.score
            for trial in tuned.confirmed
            if trial.configuration == tuned.default
        ]
        sometimes = any(score is not None for score in default)
        if sometimes:
            outcome = "kept the limit in some measurements only"
        else:
            outcome = "does not keep the limit"
        return f"{after}; the configuration before {outcome}"
    gain = ""
    if tuned.gain:
        gain = f" ({tuned.gain:.2f} times as good)"
    return f"{after}, before {tuned.before:.4g} {unit}{gain}"


def show(terminal: Terminal, tuned: Tuned, written: bool, command: str) -> None:
    """Print the trials, then the chosen configuration and the reason."""
    terminal.line(f"{tuned.name}: {tuned.goal}", bold=True)
    trials = enumerate((*tuned.trials, *tuned.confirmed), 1)
    rows = [_row(number, trial, tuned.default) for number, trial in trials]
    terminal.table(COLUMNS, rows, numbers=COLUMNS[3:6])
    if terminal.verbose:
        for name, reason in tuned.fixed.items():
            terminal.line(f"not searched: {name}: {reason}")
    if tuned.torch_faster:
        terminal.line(f"{tuned.name}: {tuned.torch_faster}; --allow-torch chooses it")
    terminal.line(
        f"{tuned.name}: {tuned.verdict}: {_changed_settings(tuned.best, tuned.default)}"
    )
    terminal.line(f"{tuned.name}: {_change(tuned)}")
    if written:
        terminal.line(f"written into the manifest; next: {command}")


def _row(number: int, trial: Trial, default: Any) -> list[str]:
    return [
        str(number),
        _changed_settings(trial.configuration, default),
        trial.proposed_by,
        *(_figure(trial, name) for name in COLUMNS[3:6]),
        _outcome(trial),
    ]


def _changed_settings(configuration: Any, default: Any) -> str:
    """The settings that differ from the default."""
    differing = {
        name: value
        for name, value in configuration.items()
        if value != default.get(name)
    }
    return ", ".join(f"{name} {value}" for name, value in differing.items()) or AS_IS


def _figure(trial: Trial, name: str) -> str:
    figures = trial.figures
    if not figures:
        return "-"
    value = figures["latency_ms"].get(name)
    if name == "req/s":
        value = figures["throughput"]["value"]
    return "-" if value is None else f"{value:.1f}"


def _outcome(trial: Trial) -> str:
    return trial.problem or "ok"
