"""Examine each model in a separate confined process. A model that crashes or hangs fails alone,
with an error that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from builder import processes
from builder.cli.examine import examine
from builder.errors import ModelError
from builder.manifest import Limits
from builder.pipeline import Order
from builder.processes import Report
from builder.progress import Progress, silent
from builder.repository import jobs
from builder.store import signing

Result = TypeVar("Result")


def examine_all(
    orders: Sequence[Order],
    paranoid: bool,
    progress: Progress,
    isolate: bool = True,
    build: bool = False,
) -> list[dict[str, Any]]:
    """The report of each order. If its process crashed or timed out, the error has the reason."""
    if not isolate:
        return [examine_here(order, paranoid, build, progress) for order in orders]
    tasks = [
        processes.Task(
            partial(examine_here, order, paranoid, build),
            progress,
            limits=jobs.limits(order.spec.limits),
            sandbox=jobs.sandbox(order, publishes=False),
            handlers=signing.HANDLERS,
        )
        for order in orders
    ]
    modules = jobs.modules(order.spec.path for order in orders)
    results = processes.run(tasks, modules=modules)
    reports = [
        _report(order, result) for order, result in zip(orders, results, strict=True)
    ]
    again = jobs.crashed(orders, results)
    if again:
        second_reports = examine_all([*again.values()], paranoid, progress, build=build)
        for index, report in zip(again, second_reports, strict=True):
            reports[index] = report
    return reports


def run_one(
    target: Callable[[Report], Result],
    isolate: bool,
    *,
    limits: Limits | None = None,
    writable: tuple[Path, ...] = (),
) -> Result:
    """Run `target` (processes.Task.target) for one model and return its result. Its process may
    write only to the folders `writable` and the caches. Raises ModelError if that process crashes
    or times out, and the errors of `target`. Without `isolate`, `target` runs in this process.
    """
    (result,) = run_each([target], isolate, limits=limits, writable=writable)
    if isinstance(result, ModelError):
        raise result
    return result


def run_each(
    targets: Sequence[Callable[[Report], Result]],
    isolate: bool,
    *,
    limits: Limits | None = None,
    writable: tuple[Path, ...] = (),
    progress: Report = silent,
    files: Sequence[Path] = (),
) -> list[Result | ModelError]:
    """As `run_one` for several models, in processes forked from one. Returns the results in order,
    with a ModelError for each process that crashed or timed out. `progress` receives the phases of
    each; `files` are the model files that they load.
    """
    if not isolate:
        return [target(progress) for target in targets]
    sandbox = jobs.caches_only(tuple(folder.resolve() for folder in writable))
    allowed = jobs.limits(limits or Limits())
    tasks = [
        processes.Task(target, progress, limits=allowed, sandbox=sandbox)
        for target in targets
    ]
    return [*processes.run(tasks, modules=jobs.modules(files))]


def examine_here(
    order: Order, paranoid: bool, build: bool, report: Progress
) -> dict[str, Any]:
    """The report on one model, from this process."""
    return examine(order, report, paranoid=paranoid, build=build)


def _report(order: Order, result: Any) -> dict[str, Any]:
    if isinstance(result, dict):
        return result
    spec = order.spec
    return {
        "name": spec.name,
        "file": str(spec.path),
        "error": result.as_dict(),
        "config": None,
    }
