"""build_repository: build every changed model of a folder, and publish models that pass parity."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import pipeline, processes, triton, unforeseen
from builder.errors import EnvironmentProblem, ManifestError
from builder.manifest import ModelSpec
from builder.pipeline import Order
from builder.progress import FINISHED, Progress, silent
from builder.repository import jobs as slots
from builder.repository import preflight, request
from builder.repository.kept import Checked, KeptArtifacts, of_variant, served_as
from builder.repository.result import RECORDED, ModelResult
from builder.repository.settings import Settings, resolved
from builder.store import Hashes, clean_up, edits, signing, staging

if TYPE_CHECKING:
    from builder.store import Plans


@dataclass(frozen=True)
class _Execution:
    """How orders are executed: `jobs` at a time (0: as many as the machine allows), each in a
    separate process with `isolate`. With `kept_artifacts`, checked artifacts are kept and used
    again.
    """

    progress: Progress
    jobs: int
    isolate: bool
    kept_artifacts: KeptArtifacts | None = None


def build_repository(
    models: Path | str,
    out: Path | str,
    settings: Settings | None = None,
    *,
    rebuild: bool = False,
    jobs: int = 0,
    isolate: bool = True,
    graphs: Path | str | None = None,
    progress: Progress | None = None,
    write_env: bool = False,
    **keywords: Any,
) -> list[ModelResult]:
    """Build every model of the folder `models` into the Triton repository `out`. Returns one result
    for each model.

    Fields of Settings may be passed as `keywords`, which override `settings`. A model with the
    file, manifest, options and versions that it was published with is not built again, which needs
    no torch. With `rebuild` it is. If a model fails, the others are still built, and its published
    version is kept. `jobs` models are built in parallel (0: as many as the machine allows), each in
    a separate process unless `isolate` is False. With a folder `graphs` every model is built, and
    its graph before and after each pass is written to `graphs`/<model>. A model without a manifest
    fails alone, unless no model has one. With `write_env`, a block in the `.env` beside `out` names
    the container that fits the plans.

    Raises ManifestError and UsageError before anything is built. This includes `serve_as`
    tensorrt_plan with TensorRT for RTX, whose plans Triton's backend does not load. Raises
    EnvironmentProblem if this machine cannot build, or cannot write to `out`.
    """
    chosen = resolved(settings, keywords)
    without: dict[str, ManifestError] = {}
    specs = chosen.specs(models, without)
    folder = Path(graphs) if graphs is not None else None
    rebuild = rebuild or folder is not None
    orders = chosen.orders(specs, Path(out), rebuild=rebuild, graphs=folder)
    results = _results(orders, chosen, _Execution(progress or silent, jobs, isolate))
    if chosen.sign:
        _sign_unchanged(results, Path(out), Path(chosen.sign))
    _note_missing(orders, results, models, out)
    if write_env and any(result.ok for result in results):
        triton.write_env(Path(out))
    results += [ModelResult(name, error=error) for name, error in without.items()]
    return sorted(results, key=lambda result: result.name)


def _note_missing(
    orders: Sequence[Order],
    results: Sequence[ModelResult],
    models: Path | str,
    out: Path | str,
) -> None:
    """Add a warning for each target whose plans need another host."""
    for order, result in zip(orders, results, strict=True):
        options = order.options.over(order.spec.build)
        result.warnings += tuple(preflight.missing(options, order.flavor, models, out))


def build_variant(
    spec: ModelSpec,
    out: Path | str,
    settings: Settings,
    *,
    kept_artifacts: KeptArtifacts | None,
    isolate: bool = True,
) -> ModelResult:
    """Build one model by `spec`, instead of its manifest, into `out`.

    With `kept_artifacts`, a variant that differs from an earlier one only in its instances and
    dynamic batching is published from the checked artifact of that one. Otherwise like
    build_repository, which also documents the errors.
    """
    orders = settings.orders([spec], Path(out))
    execution = _Execution(silent, 1, isolate, kept_artifacts)
    (result,) = _results(orders, settings, execution)
    if kept_artifacts is not None:
        kept_artifacts.digests.update(result.kept)
    return result


def _results(
    orders: Sequence[Order], chosen: Settings, execution: _Execution
) -> list[ModelResult]:
    """The result of each order. Unchanged models are not built."""
    if orders:
        clean_up(orders[0].out)
    if chosen.store:
        signing.prepare()  # workers must not write to the folder of the key
    with Hashes() as hashes:
        orders_or_results = [
            request.unless_unchanged(order, hashes) for order in orders
        ]
    to_build = [item for item in orders_or_results if isinstance(item, Order)]
    _check(to_build)
    with triton.signatures.signing_with(Path(chosen.sign) if chosen.sign else None):
        built = iter(_perform_all(to_build, execution))
        return [
            next(built) if isinstance(item, Order) else item
            for item in orders_or_results
        ]


def _check(orders: Sequence[Order]) -> None:
    """Raise the errors that must be raised before anything is built."""
    if orders:
        preflight.check(orders[0].out)
    for order in orders:
        if order.spec.triton:
            triton.section.parsed(order.spec)


def _sign_unchanged(results: Sequence[ModelResult], out: Path, key: Path) -> None:
    """Sign models that were published before without this key. A model with manual changes is not
    signed, with a warning.
    """
    whole = []
    with Hashes() as hashes:
        for result in results:
            if not result.ok:
                continue
            if edits.notes(out / result.name, hashes):
                text = f"not signed: check it, then `trt-build sign {out} --key {key}`"
                result.warnings = (*result.warnings, text)
            else:
                whole.append(result.name)
    if whole:
        triton.signatures.sign_missing(out, key, whole)


def _perform_all(orders: Sequence[Order], execution: _Execution) -> list[ModelResult]:
    if not orders:
        return []
    if not execution.isolate:
        return [
            perform(order, execution.kept_artifacts, execution.progress)
            for order in orders
        ]
    results = _in_workers(orders, execution)
    again = slots.crashed(orders, [result.error for result in results])
    built = _perform_all([*again.values()], execution)
    for index, result in zip(again, built, strict=True):
        results[index] = result
    return results


def _in_workers(orders: Sequence[Order], execution: _Execution) -> list[ModelResult]:
    jobs = execution.jobs or slots.default_jobs()
    threads = 0
    if jobs > 1:
        threads = max(1, (os.cpu_count() or 1) // jobs)
    with staging.prepared(orders[0].out, len(orders)) as stages:
        count = itertools.count(1)
        tasks = [
            _task(
                replace(order, threads=threads, stage=stage),
                execution,
                count,
                len(orders),
            )
            for order, stage in zip(orders, stages, strict=True)
        ]
        modules = slots.modules(order.spec.path for order in orders)
        results = processes.run(tasks, jobs, slots.environments(), modules=modules)
    model_results = []
    for order, result in zip(orders, results, strict=True):
        if not isinstance(result, ModelResult):
            result = ModelResult(order.spec.name, error=result, because=order.because)
        model_results.append(result)
    return model_results


def _task(
    order: Order, execution: _Execution, count: Iterator[int], total: int
) -> processes.Task[ModelResult]:
    assert order.stage is not None
    sandbox = slots.sandbox(order)
    hidden = (*sandbox.hidden, *triton.signatures.secrets())
    writable = sandbox.writable
    progress, kept_artifacts = execution.progress, execution.kept_artifacts
    if kept_artifacts is not None:
        writable = (*writable, kept_artifacts.writable())

    def report_result(result: Any) -> None:
        words = _outcome(result)
        progress(order.spec.name, f"{FINISHED}: {words} ({next(count)} of {total})")

    return processes.Task(
        partial(perform, order, kept_artifacts),
        progress,
        order.reproduce,
        limits=slots.limits(order.spec.limits),
        sandbox=replace(sandbox, hidden=hidden, writable=writable),
        handlers={**signing.HANDLERS, **triton.signatures.handlers(order.stage)},
        on_result=report_result,
    )


def _outcome(result: Any) -> str:
    """The state and the seconds of a model that was built, or `failed`."""
    if isinstance(result, ModelResult) and result.ok:
        return f"{result.state}, {sum(result.seconds.values()):.1f} s"
    return "failed"


def perform(
    order: Order, kept_artifacts: KeptArtifacts | None, progress: Progress
) -> ModelResult:
    """Build and publish the model of the order, or publish its kept artifact. All errors of the
    model are in the result, including unexpected ones. Raises only errors that affect every model
    (EnvironmentProblem, BrokenPipeError).
    """
    result = ModelResult(order.spec.name, because=order.because)
    try:
        checked = None
        if kept_artifacts is not None:
            checked = kept_artifacts.read(order.request)
        if checked is not None:
            _publish_kept(order, checked, progress, result)
        else:
            pipeline.select_environment(order)
            _publish(order, kept_artifacts, progress, result)
        result.ok = True
    except (EnvironmentProblem, BrokenPipeError):
        raise
    except Exception as error:
        result.error = unforeseen.as_defect(error)
    return result


def _plans(order: Order) -> Plans:
    from builder.store import Plans, Store

    store = Store(order.store) if order.store else None
    return Plans(store, order.last, rebuild=order.rebuild, share=order.share)


def _publish(
    order: Order,
    kept_artifacts: KeptArtifacts | None,
    progress: Progress,
    result: ModelResult,
) -> None:
    """Run the pipeline to its end and fill in the result, stage by stage."""
    plans = _plans(order)
    clock = pipeline.Clock(order.spec.name, progress, result.reached)
    result.seconds = clock.seconds
    recorded: dict[str, Any] = {}

    # before publication, because another process may publish right after it
    def record(folder: Path) -> None:
        result.state = _state(plans)
        result.warnings += tuple(plans.warnings)
        recorded.update(_recorded(order, folder, plans.record(), result))

    published = pipeline.publish(
        order, clock, plans, record, partial(_compare, order, result)
    )
    result.path = published.path
    plans.remember(order.spec.name, order.request, recorded)
    if kept_artifacts is not None:
        warnings = (*published.checked.warnings, *plans.warnings)
        checked = of_variant(
            published.checked.artifact, plans.record(), result, warnings
        )
        result.kept = kept_artifacts.write(order.request, checked)


def _state(plans: Plans) -> str:
    """`reused` if every plan was found in the store, else `built`."""
    records = plans.records.values()
    return "reused" if records and all(plan.found for plan in records) else "built"


def _publish_kept(
    order: Order, checked: Checked, progress: Progress, result: ModelResult
) -> None:
    """Publish the artifact of an earlier variant with the serving settings of this one."""
    clock = pipeline.Clock(order.spec.name, progress)
    artifact = served_as(checked.artifact, order.spec)
    for name, value in checked.result.items():
        setattr(result, name, value)
    result.seconds = clock.seconds
    result.state = "reused"
    result.warnings = checked.warnings_of(artifact)

    def record(folder: Path) -> None:
        _recorded(order, folder, checked.plans, result)

    with clock.phase("publish"):
        compare = partial(_compare, order, result)
        result.path = triton.publish(
            artifact, order.out, finish=record, compare=compare, stage=order.stage
        )


def _recorded(
    order: Order, folder: Path, plans: Mapping[str, Any], result: ModelResult
) -> dict[str, Any]:
    """Add the request and the result to the folder's record. Returns the recorded result."""
    from builder import store

    if order.edits == "keep":
        triton.carry_over(order.folder, folder)
    facts = {name: getattr(result, name) for name in RECORDED}
    store.record(folder, order.request, plans, facts)
    return facts


def _compare(order: Order, result: ModelResult, former: Path, new: Path) -> None:
    """Refuse, or warn about, changes that are incompatible with the clients of the published
    model.
    """
    changes = triton.refuse_incompatible(former, new, accept=order.accept_incompatible)
    result.warnings += tuple(
        f"incompatible with its clients: {change}" for change in changes
    )
