"""Builds every model of a folder for every target on a Ray cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder import engine, errors, triton, unforeseen
from builder.errors import ManifestError, TrtBuildError, UsageError
from builder.farm import board, cluster, job, journal, matrix, remote, schedule, sharing
from builder.farm.config import Farm, Target
from builder.farm.matrix import Combination
from builder.farm.publish import publish
from builder.farm.schedule import Task
from builder.progress import Progress, silent
from builder.repository import Settings, preflight
from builder.store import Folders, Store, clean_up, signing, sources

SENT = ("serve_as", "layout", "torch_steps", "flavor", "precision", "state")
"""The settings that a job includes. All others apply to the command only."""


@dataclass
class Outcome:
    """The result of one model on one target.

    `state`: "built"; "reused" with plans from the store; "found" complete in the store; "failed";
    "excluded" for the reason `because`. `published`: "published", "unchanged", "edited" by hand, or
    empty. `result` has the fields of ModelResult. `seconds` is the time of the last attempt.
    """

    model: str
    target: str
    state: str = "failed"
    because: str = ""
    published: str = ""
    error: TrtBuildError | None = None
    attempts: int = 0
    node: str = ""
    seconds: float = 0.0
    key: str = ""
    result: Mapping[str, Any] | None = None

    @property
    def ok(self) -> bool:
        """Whether it was built and published, or excluded."""
        return self.state == "excluded" or (self.error is None and bool(self.published))


def build_on_farm(
    models: Path | str,
    out: Path | str,
    farm: Farm,
    settings: Settings,
    *,
    rebuild: bool = False,
    require_all: bool = False,
    require_sandbox: bool = False,
    progress: Progress | None = None,
    connected: Callable[[str], None] | None = None,
) -> list[Outcome]:
    """Build every model of the folder `models` for the targets of the farm.

    Each build runs on a machine with the resources of the target. The repository of a target is
    `out`/<target>. Returns the outcome of each combination, including excluded ones.

    A failure on one target does not affect the others; with `require_all` it prevents publication.
    `settings.store` is the store that all machines use. Publication begins when all tasks have
    ended, so an interrupted run publishes nothing. `connected` is called once with the URL of Ray's
    dashboard, which is empty if there is none.

    Raises ManifestError and UsageError before anything is built, EnvironmentProblem if Ray is
    missing or the cluster or the store cannot be used, and KeyboardInterrupt if the run is
    canceled.
    """
    out = Path(out)
    store = _store_url(settings, farm)
    without: dict[str, ManifestError] = {}
    chosen = matrix.combinations(settings.specs(models, without), farm)
    _prepare(out, farm)
    outcomes = _not_built(chosen, without, farm)
    folders = Folders(store)
    with cluster.connected(farm) as library:
        if connected is not None:
            connected(cluster.dashboard(library))
        ready, failed = _jobs(
            chosen,
            folders,
            settings,
            rebuild=rebuild,
            require_sandbox=require_sandbox,
        )
        tasks, builds = _tasks(ready, farm, folders)
        _run(library, tasks, farm, out, progress or silent)
    _store_times(store, tasks)
    outcomes += [*failed, *(_outcome(task) for task in builds)]
    _publish(outcomes, folders, out, settings, require_all)
    return sorted(outcomes, key=lambda outcome: (outcome.model, outcome.target))


def _prepare(out: Path, farm: Farm) -> None:
    """Check that the repository of each target can be written, and that results can be signed."""
    for target in farm.targets:
        clean_up(out / target.name)
        preflight.check(out / target.name)
    signing.prepare()


def _not_built(
    chosen: Sequence[Combination], without: Mapping[str, ManifestError], farm: Farm
) -> list[Outcome]:
    """Return the outcomes of excluded combinations, and of models without a manifest on each
    target.
    """
    excluded = [
        Outcome(
            combination.spec.name,
            combination.target.name,
            "excluded",
            combination.because,
        )
        for combination in chosen
        if combination.because
    ]
    failed = [
        Outcome(name, target.name, error=error)
        for name, error in without.items()
        for target in farm.targets
    ]
    return excluded + failed


def _store_url(settings: Settings, farm: Farm) -> str:
    if not settings.store:
        raise UsageError(
            "a farm needs a store, through which results are passed",
            fix="`store:` in the farm file, or --store URL",
        )
    store = str(settings.store)
    if "://" not in store and any(target.image for target in farm.targets):
        raise UsageError(
            f"the store {store} is a folder, which the containers of `image` do not see",
            where=farm.file or None,
            fix="`store:` in the farm file, or --store, with a URL such as s3://bucket/plans",
        )
    if "://" in store:
        return store
    return str(Path(store).resolve())


def _name(combination: Combination) -> str:
    return matrix.history_name(combination.spec.name, combination.target.name)


def _jobs(
    combinations: Sequence[Combination],
    folders: Folders,
    settings: Settings,
    *,
    rebuild: bool,
    require_sandbox: bool,
) -> tuple[list[tuple[Combination, job.Job]], list[Outcome]]:
    """Upload the models and return each combination to be built with its job, and the outcomes of
    unreadable models.
    """
    jobs: list[tuple[Combination, job.Job]] = []
    failed: list[Outcome] = []
    uploaded: dict[str, tuple[str, dict[str, str]]] = {}
    for combination in combinations:
        if combination.because:
            continue
        spec = combination.spec
        try:
            if spec.name not in uploaded:
                uploaded[spec.name] = job.upload(spec, folders)
        except OSError as error:
            defect = unforeseen.as_defect(error)
            failed.append(Outcome(spec.name, combination.target.name, error=defect))
            continue
        target = combination.target
        build_job = job.Job(
            spec.name,
            target.name,
            folders.store.url,
            *uploaded[spec.name],
            sources.version_of_all(),
            _job_settings(settings, target),
            _build(settings, target),
            verify=target.verify,
            rebuild=rebuild,
            require_sandbox=require_sandbox,
        )
        jobs.append((combination, build_job))
    return jobs, failed


def _job_settings(settings: Settings, target: Target) -> dict[str, Any]:
    """Return the settings of a job. The command line overrides the target, which overrides
    manifests.
    """
    sent = {name: getattr(settings, name) for name in SENT}
    if settings.flavor == "auto":
        sent["flavor"] = target.flavor
    sent["precision"] = settings.precision or target.precision
    return {**sent, "share": True}


def _build(settings: Settings, target: Target) -> dict[str, Any]:
    return job.option_data(
        (settings.options or engine.BuildOptions()).over(target.build)
    )


def _tasks(
    chosen: sharing.Chosen, farm: Farm, folders: Folders
) -> tuple[list[Task], list[Task]]:
    """Return all tasks, and the builds among them. The others record goldens for several builds,
    which wait for them.
    """
    first = sharing.recordings(chosen, farm, folders)
    recordings = {task.name: task for task in first.values()}
    builds = _builds(chosen, farm, folders.store.url, first)
    return [*recordings.values(), *builds], builds


def _builds(
    chosen: sharing.Chosen, farm: Farm, store: str, first: Mapping[str, Task]
) -> list[Task]:
    """Return the builds in their start order. Each waits for the task in `first` with its name."""
    jobs = {_name(combination): build_job for combination, build_job in chosen}
    seconds = matrix.seconds_before(
        store, [_name(combination) for combination, _ in chosen]
    )
    ordered = matrix.longest_first([combination for combination, _ in chosen], seconds)
    tasks = []
    for combination, estimate in ordered:
        name = _name(combination)
        target = combination.target
        task = Task(
            name,
            target.name,
            (jobs[name].to_json(), farm.environment, int(target.cpus)),
            cluster.ray_options(target, combination.spec.limits.memory_mib),
            cluster.demand(target),
            estimate,
            after=first[name].name if name in first else "",
        )
        tasks.append(task)
    return tasks


def _run(
    library: Any, tasks: Sequence[Task], farm: Farm, out: Path, progress: Progress
) -> None:
    """Run all tasks to their ends. Raises KeyboardInterrupt."""
    with contextlib.closing(
        journal.Journal(journal.folder_of(out), tasks, progress)
    ) as notes:
        posted = board.Posted(library, str(out.resolve()), notes.counts)
        schedule.Schedule(
            library,
            remote.build,
            {
                sharing.GROUP: Target.concurrency,
                **{target.name: target.concurrency for target in farm.targets},
            },
            notes.observe,
            farm.retries,
            farm.node_seconds,
            posted.canceled,
        ).run(tasks)


def _outcome(task: Task) -> Outcome:
    ended = task.ended or {}
    model, _, target = task.name.rpartition("@")
    error = ended.get("error")
    return Outcome(
        model,
        target,
        ended["state"] if ended.get("ok") else "failed",
        error=_rebuilt(error) if error else None,
        attempts=task.attempts,
        node=task.node,
        seconds=ended.get("seconds", 0.0),
        key=ended.get("key", ""),
        result=ended.get("result"),
    )


def _rebuilt(failure: Mapping[str, Any]) -> TrtBuildError:
    """Rebuild a machine's error in this process. Its class is kept if it takes only a message."""
    kinds = (
        errors.ParityError,
        errors.EnvironmentProblem,
        errors.UsageError,
        errors.Defect,
    )
    by_exit_code = {kind.exit_code: kind for kind in kinds}
    kind = by_exit_code.get(failure["exit_code"], errors.ModelError)
    error = kind(failure["message"], where=failure.get("where"), fix=failure.get("fix"))
    error.traceback = failure.get("traceback", "")
    return error


def _store_times(store: str, tasks: Sequence[Task]) -> None:
    """Store the build times, for the order of the next run."""
    history = Store(store)
    for task in tasks:
        ended = task.ended or {}
        if ended.get("state") in ("built", "recorded"):
            with contextlib.suppress(Exception):  # a lost time affects only the order
                more = sharing.seconds_to_remember(ended)
                history.remember(task.name, {"seconds": ended["seconds"], **more})


def _publish(
    outcomes: Sequence[Outcome],
    store: Folders,
    out: Path,
    settings: Settings,
    require_all: bool,
) -> None:
    """Publish the built models, and record it in the outcomes."""
    if require_all and any(outcome.state == "failed" for outcome in outcomes):
        return
    key = Path(settings.sign) if settings.sign else None
    with triton.signatures.signing_with(key):
        for outcome in outcomes:
            if not outcome.key or outcome.state == "failed":
                continue
            try:
                outcome.published = publish(
                    store,
                    outcome.key,
                    out / outcome.target / outcome.model,
                    accept=settings.accept_incompatible,
                )
            except Exception as error:
                outcome.error = unforeseen.as_defect(error)
