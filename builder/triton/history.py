"""Rolls back to an earlier version, removes old versions, and promotes models between
repositories.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import TrtBuildError, UsageError
from builder.store import Hashes, Version, edits, published, retired, staging
from builder.triton import copying, interface, versions
from builder.triton.publish import blocked, created_folder, move_in

ATTEMPTS = 5
"""How often the folder of a model is read if other processes replace it."""
PAUSE_SECONDS = 0.05
"""The time between two attempts."""
CURRENT, SERVED, KEPT = "current", "served", "kept"
"""States of a version: it serves requests without a version; only requests that name it; none."""


@dataclass(frozen=True)
class Entry:
    """One version in `trt-build history`. `damaged` names the first file that differs from its
    published state.
    """

    number: int
    state: str
    published_at: str | None
    source: str | None
    precision: str | None
    versions: dict[str, Any]
    parity: dict[str, Any] | None
    because: str
    files: dict[str, str]
    damaged: str | None
    identity: str
    """The same for equal versions of any repository, see builder.triton.versions.identity."""


def history(folder: Path) -> list[Entry]:
    """Return the versions of the model in `folder`, newest first. Raises UsageError.

    The folder is read again if another process replaces it meanwhile. Between the two renames of a
    publication there is none.
    """
    for attempt in range(ATTEMPTS):
        before = None
        try:
            before = copying.identity(folder)
            entries = _entries(folder)
            copying.require_same(folder, before)
            break
        except (TrtBuildError, FileNotFoundError):
            if attempt == ATTEMPTS - 1:
                versions.of_model(folder)
                raise
            if before and not copying.is_replaced(folder, before):
                raise
            time.sleep(PAUSE_SECONDS)
    return sorted(entries, key=lambda entry: entry.number, reverse=True)


def _entries(folder: Path) -> list[Entry]:
    with published.shaped(folder):
        known = versions.of_model(folder)
        # the config may be a link or a pipe, which are not read
        served = () if any(published.special(folder)) else versions.served(folder)
        return [_entry(version, known[0], served) for version in known]


def _entry(version: Version, current: Version, served: Sequence[int]) -> Entry:
    record = version.sidecar
    result = record.get(published.RESULT) or {}
    state = SERVED if version.number in served else KEPT
    return Entry(
        version.number,
        CURRENT if version.number == current.number else state,
        _typed(record.get(versions.PUBLISHED), str),
        _typed((record.get("source") or {}).get("sha256"), str),
        _typed(record.get("precision"), str),
        dict(record.get("versions") or {}),
        _parity(result),
        str(result.get("because") or ""),
        dict(record.get("files") or {}),
        next(version.damaged(), None),
        versions.identity(record),
    )


def _parity(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """The largest differences from the goldens. Raises TypeError for a difference that is no
    number.
    """
    parity: dict[str, Any] | None = _typed(result.get("parity"), dict)
    _typed((parity or {}).get("absolute"), int | float)
    return parity


def _typed(value: Any, kind: Any) -> Any:
    """The value if it has this type or is None. Raises TypeError."""
    if value is None or isinstance(value, kind):
        return value
    raise TypeError(f"{value!r:.50} is a {type(value).__name__}")


def rollback(folder: Path, to: int | None, *, accept: bool = False) -> tuple[int, int]:
    """Serve version `to` of the model in `folder` again (None: the newest before the current one).

    Returns the former and the new version number, which are equal if `to` is served already. Raises
    UsageError if there is no such version, if files were added by hand, or if the change breaks
    clients and `accept` is False; PublishError if the version is damaged.
    """
    current = versions.of_model(folder)[0]
    if to == current.number:
        versions.require_undamaged(current)
        return to, to
    with _replacing(folder) as new:
        before = versions.of_model(folder)[0].number
        chosen = versions.find(folder, to)
        versions.rolled_back(folder, chosen, new)
        interface.refuse_incompatible(folder, new, accept=accept)
    return before, chosen.number


def prune(folder: Path, keep: int) -> list[int]:
    """Keep `keep` versions of the model in `folder` and remove the oldest others, never the current
    one.

    Returns the removed numbers. Raises UsageError, PublishError.
    """
    if len(versions.of_model(folder)) <= keep:
        return []
    with _replacing(folder) as new:
        return versions.pruned(folder, keep, new)


@contextlib.contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder for the replacement of the model in `folder`, under the repository's
    lock. It is published at the end of the `with` block.
    """
    repository = folder.parent
    versions.of_model(folder)
    with (
        published.shaped(folder),
        blocked(folder.name, repository),
        staging.staging(repository) as stage,
        staging.lock(repository),
    ):
        versions.require_plain(folder)
        _refuse_additions(folder)
        (stage / folder.name).mkdir()
        yield stage / folder.name
        staging.sync_tree(stage / folder.name)
        move_in(folder.name, (), repository, stage)


def _refuse_additions(folder: Path) -> None:
    """Raise UsageError if the model has files that trt-build did not write."""
    if added := edits.additions(folder):
        raise UsageError(
            f"{folder.name!r} has files that trt-build did not write: {', '.join(added)}",
            where=str(folder),
            fix="move them out of the repository",
        )


def require_removable(repository: Path, names: Sequence[str]) -> None:
    """Raise UsageError unless each name is that of a published model, or of an ensemble whose
    removal was killed and left its steps.
    """
    whole = [name for name in names if not _has_only_steps(repository / name)]
    if whole:
        for folder in models(repository, whole):
            _refuse_additions(folder)


def _has_only_steps(folder: Path) -> bool:
    return not os.path.lexists(folder) and bool(
        retired.steps(folder.name, folder.parent)
    )


def remove(folder: Path) -> list[int]:
    """Remove the published model in `folder` with all versions, and the steps of an ensemble.

    Returns the removed numbers, the current one first. An ensemble is moved out before its steps,
    because a server would fail to load it without them. Raises UsageError, PublishError.
    """
    repository = folder.parent
    with (
        blocked(folder.name, repository, "removed"),
        staging.staging(repository) as stage,
        staging.lock(repository),
    ):
        numbers = [version.number for version in published.versions(folder)]
        if numbers:
            _refuse_additions(folder)
        steps = sorted(retired.steps(folder.name, repository))
        _move_out([folder.name] if numbers else [], steps, repository, stage)
        staging.sync(repository)
    return numbers


def _move_out(
    models: Sequence[str], steps: Sequence[str], repository: Path, stage: Path
) -> None:
    """Move the folders into `stage`. If that fails or is interrupted, all are moved back."""
    names = [*models, *steps]
    try:
        for name in names:
            (repository / name).rename(stage / f"removed {name}")
    except BaseException:
        for name in reversed(names):
            if (stage / f"removed {name}").exists():
                (stage / f"removed {name}").rename(repository / name)
        raise


@dataclass(frozen=True)
class Promotion:
    """The result for one model: its version number in the target repository, whether it was added
    or is "unchanged", and the `changes` that clients notice.
    """

    name: str
    number: int
    state: str
    changes: tuple[str, ...] = ()


def promote(source: Path, repository: Path, *, accept: bool = False) -> Promotion:
    """Publish the current version of the model in the folder `source` into another repository, with
    the steps of an ensemble.

    The files are copied unchanged. Raises UsageError and PublishError as `trt-build repo` does, and
    PublishError if a file of `source` is damaged.
    """
    with published.shaped(source):
        return _promote(source, repository, accept)


def _promote(source: Path, repository: Path, accept: bool) -> Promotion:
    name, (current, *_) = source.name, versions.of_model(source)
    before = copying.identity(source)
    versions.require_plain(source)
    versions.require_undamaged(current)
    target = repository / name
    with Hashes() as hashes:
        target_versions = published.versions(target)
        if target_versions and _is_there(current, target_versions[0]):
            return Promotion(name, target_versions[0].number, "unchanged")
        edits.refuse_any(target, hashes)
    steps = published.recorded_steps(current.sidecar)
    with (
        blocked(name, repository),
        created_folder(repository),
        staging.staging(repository) as stage,
        staging.lock(repository),
    ):
        for step in steps:
            copying.copy(source.parent / step, stage / step)
        (stage / name).mkdir()
        versions.copied(current, stage / name)
        copying.require_same(source, before)
        changes = interface.refuse_incompatible(target, stage / name, accept=accept)
        versions.arrange(stage / name, target, versions.policy_of(source))
        for model in (*steps, name):
            staging.sync_tree(stage / model)
        move_in(name, steps, repository, stage)
    return Promotion(name, versions.of_model(target)[0].number, "promoted", changes)


def _is_there(current: Version, published_version: Version) -> bool:
    """Whether another repository already serves this version, undamaged."""
    return versions.same(current, published_version) and not any(
        published_version.damaged()
    )


def models(repository: Path, only: Sequence[str] = ()) -> list[Path]:
    """The folders of the published models in `repository`, without the steps of ensembles.

    Raises UsageError if there is no such folder, or for a name in `only` that is no such model, and
    PermissionError for a model that this user cannot read.
    """
    published.require_repository(repository)
    folders = [
        folder
        for folder in published.recorded_folders(repository)
        if retired.step_of(folder) is None
    ]
    names = [folder.name for folder in folders]
    unknown = [name for name in only if name not in names]
    if unknown or not folders:
        missing = f"no model {', '.join(map(repr, unknown))}" if unknown else "no model"
        fix = "name a repository of `trt-build repo`"
        if names:
            fix = f"use one of {', '.join(names)}"
        raise UsageError(
            f"{repository} has {missing} that trt-build published", fix=fix
        )
    return [folder for folder in folders if not only or folder.name in only]
