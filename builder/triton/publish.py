"""Publishes models atomically: at every moment the repository has all of a model or none of it.

A model of one folder is exchanged with one rename. An ensemble has several folders. Its steps'
names end with a digest of their content, so a step is only added, never changed. New steps are
moved in first. The ensemble's own folder names its steps in its config and manifest; the rename of
this folder is the switch. A later publication removes steps that no manifest names any more, once a
server had time to unload them (retired.GRACE_SECONDS).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from builder.errors import PublishBlocked, PublishError, summary
from builder.manifest import Versions
from builder.store import edits, published, retired, staging
from builder.triton import bytecode, copying, layout, signatures, versions
from builder.triton.artifact import EnsembleArtifact, ModelArtifact
from builder.unforeseen import BLOCKING, file_system_fix

SETTLE_SECONDS = 2.0
"""Seconds between new steps and the ensemble that names them. A poll that lists the folders before
the steps exist must not read the new ensemble, because it would then unload it.
"""

Writer = Callable[[Path], None]
"""Writes one model into an empty folder."""
Comparison = Callable[[Path, Path], None]
"""Compares the published folder with its replacement; raises if the replacement is refused."""
REPLACED = Versions()
WholeWriter = Callable[[Path, Mapping[str, str]], None]
"""Writes an ensemble into an empty folder. The mapping has the published name of each step."""


def publish(
    artifact: ModelArtifact | EnsembleArtifact,
    repository: Path,
    *,
    finish: Writer | None = None,
    stage: Path | None = None,
    compare: Comparison | None = None,
) -> Path:
    """Publish the model into `repository` (created if missing), replacing one of the same name.

    Returns its folder. `finish` adds files before the folder becomes visible, and `compare` may
    refuse the replacement. `stage` is the staging folder from staging.prepared; by default a new
    one is created.

    Each step of an ensemble is published as `<its name>.<digest>`. The steps of a former ensemble
    of this name are retired. If interrupted or out of space, it leaves the repository unchanged.
    Raises PublishError, UsageError (see config).
    """
    steps: dict[str, Writer] = {}
    policy = artifact.spec.versions
    if isinstance(artifact, EnsembleArtifact):
        for step in artifact.steps:
            steps[step.spec.name] = functools.partial(layout.write, step)
    elif artifact.step_of is not None:
        policy = REPLACED

    def whole(folder: Path, names: Mapping[str, str]) -> None:
        if isinstance(artifact, EnsembleArtifact):
            layout.write_ensemble(_renamed(artifact, names), folder)
        else:
            layout.write(artifact, folder)

    name = artifact.spec.name
    return publish_parts(name, steps, whole, repository, finish, stage, compare, policy)


def publish_parts(
    name: str,
    steps: Mapping[str, Writer],
    whole: WholeWriter,
    repository: Path,
    finish: Writer | None = None,
    stage: Path | None = None,
    compare: Comparison | None = None,
    policy: Versions = REPLACED,
) -> Path:
    """Publish the model whose folder `whole` fills, with its `steps`."""
    staged = contextlib.nullcontext(stage) if stage else staging.staging(repository)
    with blocked(name, repository), created_folder(repository), staged as stage:
        names = {base: _write_step(base, write, stage) for base, write in steps.items()}
        (stage / name).mkdir()
        whole(stage / name, names)
        if names:
            layout.seal_steps(stage / name, list(names.values()))
        if finish is not None:
            finish(stage / name)
        for model in (*names.values(), name):
            staging.sync_tree(stage / model)
        with staging.lock(repository):
            if compare is not None:
                compare(repository / name, stage / name)
            versions.arrange(stage / name, repository / name, policy)
            if policy.keep:
                staging.sync_tree(stage / name)
            else:  # only the record has changed
                staging.sync(stage / name / published.SIDECAR)
                staging.sync(stage / name)
            move_in(name, list(names.values()), repository, stage)
    return repository / name


def move_in(name: str, steps: Sequence[str], repository: Path, stage: Path) -> None:
    """Move the complete model in `stage` into the repository, under its lock.

    Raises PublishError, OSError.
    """
    edits.refuse_case(repository / name)
    _not_foreign(name, steps, repository)
    _no_step_of_another(name, repository, stage)
    for model in (*steps, name):
        bytecode.prevent(stage / model)
    new_steps = published.step_names(stage / name)
    retired.record(name, {*steps, *new_steps}, repository, stage)
    signatures.sign_staged([stage / model for model in (*steps, name)])
    _switch(name, list(steps), repository, stage)
    retired.remove(repository / name, stage)
    staging.sync(repository)


@contextlib.contextmanager
def blocked(name: str, repository: Path, change: str = "published") -> Iterator[None]:
    """Convert a file system error to a TrtBuildError. `change` names the operation
    in the message.
    """
    try:
        yield
    except OSError as error:
        kind = PublishBlocked if error.errno in BLOCKING else PublishError
        is_missing = error.errno == errno.ENOENT  # another process changed the folder
        raise kind(
            f"model {name!r} was not {change}: {summary(error)}",
            where=str(repository / name),
            fix=copying.AGAIN if is_missing else file_system_fix(error, "repository"),
        ) from error


def _renamed(artifact: EnsembleArtifact, names: Mapping[str, str]) -> EnsembleArtifact:
    steps = (
        replace(step, spec=replace(step.spec, name=names[step.spec.name]))
        for step in artifact.steps
    )
    return replace(artifact, steps=tuple(steps))


def _write_step(base: str, write: Writer, stage: Path) -> str:
    """Write a step, and name it by its content."""
    folder = stage / base
    folder.mkdir()
    write(folder)
    name = layout.name_by_content(folder, base)
    folder.rename(stage / name)
    return name


def _not_foreign(name: str, steps: Iterable[str], repository: Path) -> None:
    """Check that a step's folder replaces only a step of the same model."""
    for step in steps:
        folder = repository / step
        if folder.exists() and retired.step_of(folder) != name:
            raise PublishError(
                f"{step!r} is the name of a step of {name!r}, and a model of its own in the"
                " repository",
                where=str(folder),
                fix=f"rename that model, or build {name!r} with --layout fused",
            )


def _no_step_of_another(name: str, repository: Path, stage: Path) -> None:
    """Check that a model published under the name of an ensemble's step is that step: the ensemble
    would be served with it.
    """
    owner = retired.step_of(repository / name)
    if (
        owner in (None, name, retired.step_of(stage / name))
        or not (repository / str(owner)).exists()
    ):
        return
    raise PublishError(
        f"{name!r} is the name of a step of {owner!r}, which would be served with this model",
        where=str(repository / name),
        fix=f"rename the model, or build {owner!r} with --layout fused",
    )


def _switch(name: str, steps: list[str], repository: Path, stage: Path) -> None:
    """Move new steps in, then exchange the model's own folder. A failure before the exchange
    removes the new steps again.
    """
    new = [step for step in steps if not _is_there(step, repository, stage)]
    try:
        _move_steps(new, repository, stage, wait=(repository / name).exists())
        staging.swap(stage / name, repository / name, stage / f"{staging.OLD}{name}")
    except BaseException:
        # the signal may have arrived after the exchange
        published_steps = (
            published.read(repository / name / published.SIDECAR).get("steps") or ()
        )
        for step in (
            step
            for step in new
            if step not in published_steps and (repository / step).exists()
        ):
            (repository / step).rename(stage / f"withdrawn {step}")
        raise


def _move_steps(
    new: Iterable[str], repository: Path, stage: Path, *, wait: bool
) -> None:
    moved = False
    for step in new:
        staging.swap(stage / step, repository / step, stage / f"{staging.OLD}{step}")
        moved = True
    if moved and wait:
        staging.sync(repository)
        time.sleep(SETTLE_SECONDS)


def add_steps(
    name: str, steps: Sequence[str], repository: Path, stage: Path
) -> list[str]:
    """Add the missing steps of the ensemble `name` to the repository, under its lock.

    Returns their names. A server in poll mode finds them before the next folder that is moved in.
    Raises PublishError, OSError.
    """
    _not_foreign(name, steps, repository)
    new = [step for step in steps if not _is_there(step, repository, stage)]
    _move_steps(new, repository, stage, wait=True)
    return new


def _is_there(step: str, repository: Path, stage: Path) -> bool:
    """Whether the repository has exactly this step, undamaged."""
    sidecars = [root / step / published.SIDECAR for root in (repository, stage)]
    return (
        sidecars[0].is_file()
        and sidecars[0].read_bytes() == sidecars[1].read_bytes()
        and not any(published.damaged(repository / step))
    )


@contextlib.contextmanager
def created_folder(repository: Path) -> Iterator[None]:
    """Create the repository's folder. If the publication fails, remove it and its parents again,
    unless they existed.
    """
    created = not repository.exists()
    with staging.without_empty_parents(repository):
        try:  # covers mkdir, too: an interrupt may arrive during it
            repository.mkdir(parents=True, exist_ok=True)
            yield
        except BaseException:
            if created:
                with contextlib.suppress(OSError), staging.lock(repository):
                    repository.rmdir()  # not while another publication moves its model in
            raise
