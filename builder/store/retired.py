"""Steps of ensembles that no manifest names any more, and the time of their removal."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from builder.store import published, staging
from builder.store.published import RETIRED

GRACE_SECONDS = 120.0
"""How long a step stays in the repository after the last manifest that names it was replaced: eight
of tritonserver's default polls (15 s). Within this time it switches versions and finishes pending
requests.
"""


def clean_up(repository: Path) -> tuple[str, ...]:
    """Repair what killed runs left (see staging.recover), and remove their unfinished signatures
    and the steps whose grace period is over.

    Called first by every run. Returns the models that were put back.
    """
    restored: tuple[str, ...] = ()
    with contextlib.suppress(OSError):  # publication reports what cannot be written
        restored = staging.recover(repository)
        _remove_unfinished_signatures(repository)
        _remove_expired_steps(repository)
    return restored


def _remove_unfinished_signatures(repository: Path) -> None:
    """Remove the signatures that a killed `trt-build sign` did not finish. It writes them under the
    lock of the repository. What cannot be removed stays.
    """
    pattern = f"{published.UNFINISHED_SIGNATURE}*"
    if any(repository.glob(pattern)):
        with staging.lock(repository):
            for file in repository.glob(pattern):
                with contextlib.suppress(OSError):
                    file.unlink()


def _remove_expired_steps(repository: Path) -> None:
    expired = [
        path.parent
        for path in repository.glob(f"*/{published.SIDECAR}")
        if _expired(path.parent)
    ]
    if expired:
        with staging.staging(repository) as stage, staging.lock(repository):
            for folder in expired:
                remove(folder, stage)


def step_of(folder: Path) -> str | None:
    """The ensemble that the model in `folder` is a step of."""
    owner = published.read(folder / published.SIDECAR).get("step_of")
    return owner if isinstance(owner, str) else None


def steps(name: str, repository: Path) -> set[str]:
    """The models of the repository that are steps of the ensemble `name`."""
    folders = (path.parent for path in repository.glob(f"*/{published.SIDECAR}"))
    return {folder.name for folder in folders if step_of(folder) == name}


def record(name: str, new_steps: Iterable[str], repository: Path, stage: Path) -> None:
    """Record in the staged manifest which steps no manifest names from now on, and the time.

    A step that no manifest ever named was moved in by a killed publication. Its age counts.
    """
    former = published.read(repository / name / published.SIDECAR)
    since = former.get(RETIRED)
    former_steps = published.step_names(repository / name)
    known = since if isinstance(since, dict) else {}
    now = time.time()
    retired = {}
    for step in sorted(steps(name, repository) - {name, *new_steps}):
        if step in former_steps:
            retired[step] = now
        else:
            retired[step] = known.get(step, (repository / step).stat().st_ctime)
    if retired:
        record = published.read(stage / name / published.SIDECAR)
        published.write(stage / name, {**record, RETIRED: retired})
        staging.sync(stage / name / published.SIDECAR)


def remove(folder: Path, stage: Path) -> None:
    """Move the steps of the model in `folder` whose grace period is over out of the repository."""
    for step in _expired(folder):
        os.rename(folder.parent / step, stage / f"retired {step}")


def _expired(folder: Path) -> list[str]:
    retired = (published.sidecar(folder) or {}).get(RETIRED)
    if not isinstance(retired, dict):
        return []
    over = [
        step
        for step, since in retired.items()
        if isinstance(since, float | int) and time.time() - since >= GRACE_SECONDS
    ]
    return [
        step
        for step in over
        if step not in published.step_names(folder)
        and step_of(folder.parent / step) == folder.name
    ]
