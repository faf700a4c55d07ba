"""`trt-build bisect`: find the first node of a model whose output differs from the original."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import diagnosis, repository, store
from builder.cli import options, paths
from builder.cli.command import command
from builder.cli.repo import common_exit_code
from builder.cli.terminal import Terminal
from builder.errors import EnvironmentProblem, ParityError, TrtBuildError, UsageError
from builder.printable import counted
from builder.progress import Progress
from builder.report import percent

if TYPE_CHECKING:
    from builder.diagnosis import Bisection
    from builder.pipeline import Order

    Result = Bisection | TrtBuildError


@command(
    "bisect",
    "trt-build bisect models --only net --reduce failing",
)
@click.argument("target", type=options.PATH, metavar="MODELS_OR_REPOSITORY")
@options.only
@options.inputs
@options.sample
@options.precision
@options.flavor
@options.path(
    "--models",
    "files",
    metavar="MODELS",
    help="The source of the repository's models: a folder or a model file.",
)
@options.path(
    "--reduce",
    "reduce_to",
    metavar="DIR",
    help="Write the smallest failing TorchScript file, its inputs and a test into DIR/<model>.",
)
@options.plugins
@options.confinement
@options.record
def bisect_command(
    terminal: Terminal,
    /,
    target: Path,
    files: Path | None,
    reduce_to: Path | None,
    isolate: bool,
    record: bool,
    **settings: Any,
) -> int:
    """Compare each value of the lowered graph and of the networks of MODELS with the original
    module, on every golden. Name the first node that exceeds its tolerance: its source line, its
    converter or lowering pass, and its dtypes. For a REPOSITORY, pass the source of its models with
    --models.

    Nothing is compiled: the networks are evaluated on the CPU. Exit code 3 if a model differs.
    """
    orders = _orders(target, files, settings, isolate)
    if record and files is None:
        raise UsageError("--record requires a repository", fix="remove --record")
    if record:
        options.require_writable_results(target, "bisect")
    if reduce_to is not None:
        paths.create_folder(reduce_to, "--reduce")
    results_by_name = _results(terminal, orders, reduce_to, isolate)
    code = common_exit_code(filter(None, map(_code, results_by_name.values())))
    data = {
        "passed": code == 0,
        "models": [_data(*item) for item in results_by_name.items()],
    }
    if record:
        from builder.report import records

        records.keep(target, records.BISECT, data)
    terminal.result(data, lambda: _show(terminal, results_by_name))
    return code


def _orders(
    target: Path, files: Path | None, settings: dict[str, Any], isolate: bool
) -> Sequence[Order]:
    """The orders of the models to compare. Raises UsageError and ManifestError."""
    from builder.cli import ladder

    only = settings.pop("only")
    published = []
    if target.is_dir():
        published = [
            folder for folder in sorted(target.iterdir()) if store.sidecar(folder)
        ]
    if not published:
        if files is not None:
            raise UsageError(
                "--models requires a repository", fix=f"run trt-build bisect {files}"
            )
        inputs = options.parsed(settings.pop("inputs"))
        chosen = repository.Settings(only=only, inputs=inputs, **settings)
        return chosen.orders(chosen.specs(target), target)
    if files is None:
        raise UsageError(
            f"{target} is a repository, and bisect runs the original modules",
            fix="pass their source: --models MODELS",
        )
    source = ladder.Source(files, settings["plugins"], isolate)
    return [
        ladder.order_of(target, name, source) for name in ladder.models_of(target, only)
    ]


def _results(
    terminal: Terminal, orders: Sequence[Order], reduce_to: Path | None, isolate: bool
) -> dict[str, Result]:
    """The results by model. Prints the tracebacks of errors."""
    with terminal.progress() as progress:
        results = {
            order.spec.name: _bisected(order, reduce_to, isolate, progress)
            for order in orders
        }
    for name, result in results.items():
        if isinstance(result, TrtBuildError) and result.traceback:
            terminal.trace(name, result.traceback)
    return results


def _bisected(
    order: Order, reduce_to: Path | None, isolate: bool, progress: Progress
) -> Result:
    """The result of one model.

    An error of this model alone is returned. Raises EnvironmentProblem.
    """
    from builder import unforeseen
    from builder.cli import isolated

    try:
        (result,) = isolated.run_each(
            [partial(diagnosis.bisect, order, reduce_to)],
            isolate,
            limits=order.spec.limits,
            writable=(reduce_to,) if reduce_to else (),
            progress=progress,
        )
    except EnvironmentProblem:
        raise
    except Exception as error:
        return unforeseen.as_defect(error)
    return result


def _code(result: Result) -> int:
    if isinstance(result, TrtBuildError):
        return result.exit_code
    return 0 if result.passed else ParityError.exit_code


def _data(name: str, result: Result) -> dict[str, Any]:
    if isinstance(result, TrtBuildError):
        return {"name": name, "passed": False, "error": result.as_dict()}
    return {**result.as_dict(), "error": None}


def _show(terminal: Terminal, results_by_name: dict[str, Result]) -> None:
    for name, result in results_by_name.items():
        if isinstance(result, TrtBuildError):
            terminal.line(f"{name}: {result}", color="red")
        elif result.passed:
            networks = counted(result.networks, "network")
            terminal.line(
                f"{name}: no difference on {result.goldens} goldens, in the lowered graph and"
                f" {networks}",
                color="green",
            )
        else:
            _show_difference(terminal, result)


def _show_difference(terminal: Terminal, bisection: Bisection) -> None:
    terminal.line(
        f"{bisection.name}: {bisection.step} differs from the original module on golden"
        f" {bisection.golden}: {bisection.problem}",
        color="red",
    )
    for label, text in diagnosis.description(bisection):
        terminal.line(f"  {label:9} {text}")
    if bisection.culprit and bisection.culprit.share is not None:
        terminal.line(
            f"  {'share':9} {percent(bisection.culprit.share)} of its tolerance"
        )
    if bisection.culprit and bisection.culprit.network_exact is not None:
        errors = bisection.culprit.network_exact, bisection.culprit.torch_exact
        network, torch = map(percent, errors)
        terminal.line(
            f"  {'float64':9} off by {network} in the network, by {torch} in torch"
        )
    if bisection.note:
        terminal.line(f"  {'note':9} {bisection.note}")
    if bisection.reduced:
        reduced = bisection.reduced
        terminal.line(
            f"  {'reduced':9} {reduced.nodes} of {reduced.of_nodes} nodes: pytest {reduced.folder}"
        )
