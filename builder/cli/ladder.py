"""`verify --ladder`: compare every step from the original module to the endpoint, one line each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import diagnosis, parity
from builder.cli import isolated
from builder.cli.terminal import Terminal, command_line
from builder.errors import TrtBuildError, UsageError
from builder.progress import Progress
from builder.report import percent
from builder.store import published

if TYPE_CHECKING:
    from builder.diagnosis import Ladder, Step
    from builder.parity import ModelParity
    from builder.pipeline import Order

COLUMNS = ("result", "model", "step", "answers", "of tolerance")
SHOWN = {"ok": "ok", "failed": "FAILED", "not run": "not run"}


@dataclass(frozen=True)
class Source:
    """The source of published models and how to read it; see `verify --help`."""

    models: Path
    plugins: tuple[str, ...] = ()
    isolate: bool = True


def source(
    models: Path | None, plugins: tuple[str, ...], isolate: bool, *, engine: bool
) -> Source:
    """The source for --ladder. Raises UsageError without model files, or with --engine."""
    if engine:
        raise UsageError(
            "--ladder also runs the plans if the machine has a GPU",
            fix="remove --engine",
        )
    if models is None:
        raise UsageError(
            "--ladder runs the original modules",
            fix="pass their source: --models MODELS",
        )
    return Source(models, plugins, isolate)


def run_ladders(
    repository: Path,
    models: Sequence[str] | None,
    source: Source,
    endpoint: Sequence[ModelParity],
    progress: Progress,
) -> list[Ladder]:
    """The ladder of each of `models`, or of all: its steps up to the network in a separate process,
    then the engine if the machine has a GPU, then the outputs of the `endpoint`. Steps of an
    ensemble are left out. Raises UsageError where `source` does not have a model.
    """
    names = models_of(repository, models)
    results = {model.name: model for model in endpoint}
    orders = [order_of(repository, name, source) for name in names]
    network_steps = _up_to_the_network(repository, orders, source, progress)
    engines = _engines(repository, names, progress)
    return [
        diagnosis.Ladder(
            name, (*steps, engines[name], _endpoint_step(results.get(name)))
        )
        for name, steps in zip(names, network_steps, strict=True)
    ]


def models_of(repository: Path, models: Sequence[str] | None) -> list[str]:
    """`models`, or all of the repository, without the steps of ensembles. Raises UsageError."""
    return [
        name
        for name in parity.served.chosen(repository, models or None)
        if not (published.sidecar(repository / name) or {}).get("step_of")
    ]


def order_of(repository: Path, name: str, source: Source) -> Order:
    """The published model as it would be built again, with its precision and TensorRT. Raises
    UsageError and ManifestError.
    """
    from builder.engine import flavor
    from builder.repository import Settings

    with published.shaped(repository / name):
        record = published.sidecar(repository / name) or {}
        before = str(published.flavor_of(record.get("versions", {})))
        request = record.get("request", {})
        state = None
        if request.get("state"):
            state = (request.get("sequences") or {}).get("mode")
        settings = Settings(
            only=(name,),
            precision=request.get("precision"),
            layout=request.get("layout", "auto"),
            state=state,
            flavor=before if before in flavor.installed() else "auto",
            plugins=source.plugins,
        )
    (order,) = settings.orders(settings.specs(source.models), repository)
    return order


def _up_to_the_network(
    repository: Path, orders: Sequence[Order], source: Source, progress: Progress
) -> list[tuple[Step, ...]]:
    steps: list[tuple[Step, ...]] = []
    for order in orders:
        run_steps = partial(_run_steps_here, order, repository / order.spec.name)
        (result,) = isolated.run_each(
            [run_steps], source.isolate, limits=order.spec.limits, progress=progress
        )
        if isinstance(result, TrtBuildError):
            result = (diagnosis.Step("original", problem=result.message),)
        steps.append(result)
    return steps


def _run_steps_here(order: Order, folder: Path, report: Any) -> tuple[Step, ...]:
    """The steps of one model up to its networks, in this process."""
    return diagnosis.run_steps(order, parity.served.read(folder), report)


def _engines(
    repository: Path, names: Sequence[str], progress: Progress
) -> dict[str, Step]:
    """The outputs of each model's plan on this machine's GPU."""
    from builder.engine import flavor

    if not flavor.has_gpu():
        return {
            name: diagnosis.Step("engine", note="no CUDA device found")
            for name in names
        }
    steps = {}
    for name in names:
        try:
            (result,) = parity.verify_engines(
                repository, [name], repeat=0, progress=progress
            )
            steps[name] = diagnosis.step_of_parity("engine", result)
        except TrtBuildError as error:
            steps[name] = diagnosis.Step("engine", note=error.message)
    return steps


def _endpoint_step(model: ModelParity | None) -> Step:
    if model is None:
        return diagnosis.Step("endpoint", note="neither --serve nor --url is given")
    return diagnosis.step_of_parity("endpoint", model)


def show(terminal: Terminal, ladders: Sequence[Ladder], models: Path) -> None:
    """Print a line for each step, then the first failed step of each model."""
    rows = [_row(ladder, step) for ladder in ladders for step in ladder.steps]
    terminal.table(COLUMNS, rows, numbers=COLUMNS[3:])
    notes = {
        (step.name, step.note): ladder.name
        for ladder in ladders
        for step in ladder.steps
        if step.note and (terminal.verbose or step.result == "not run")
    }
    for (name, note), _ in notes.items():
        terminal.line(f"{name}: {note}")
    for ladder in ladders:
        for step in ladder.steps:
            if step.problem:
                terminal.line(
                    f"FAILED {ladder.name}, {step.name}: {step.problem}", color="red"
                )
    broken = [ladder for ladder in ladders if ladder.breaks_at]
    for ladder in broken:
        terminal.line(f"{ladder.name} breaks at: {ladder.breaks_at}", color="red")
        bisect = command_line("trt-build", "bisect", models, "--only", ladder.name)
        terminal.hint(f"next: {bisect}")
    if not broken:
        terminal.line(
            f"{len(ladders)} passed at every step that was run", color="green"
        )


def _row(ladder: Ladder, step: Step) -> list[object]:
    share = step.answers or ""
    return [SHOWN[step.result], ladder.name, step.name, share, percent(step.share)]
