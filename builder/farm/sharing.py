"""Selects the goldens that a separate task records before the builds that use them.

Recording runs the original module many times on the CPU. Builds of one model for several targets
need the same goldens. One task therefore records them, without a GPU. Loading and lowering are fast
in comparison, and each build repeats them.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from builder.errors import EnvironmentProblem
from builder.farm import cluster, job
from builder.farm.config import Farm, Target
from builder.farm.matrix import READERS, Combination, history_name
from builder.farm.schedule import Task
from builder.store import Folders, Hashes, goldens_key, last, shared_request

KIND = "goldens"
"""The folder of the store (builder.parity.recordings)."""
GROUP = "goldens.shared"
"""The group of these tasks. No target has a dot in its name."""
LEAST_BYTES = 4 << 20
"""The model file size from which a separate task is worthwhile, before any time was measured."""
LEAST_SECONDS = 2.0
"""The last recording time in seconds from which the next recording has a separate task."""

Chosen = Sequence[tuple[Combination, job.Job]]


def recordings(chosen: Chosen, farm: Farm, store: Folders) -> dict[str, Task]:
    """Return the recording task by the name of each build that uses it.

    Only models with two builds or more have one, if it saves time and the store lacks the goldens.
    """
    groups = defaultdict[tuple[str, str | None], list[tuple[Combination, job.Job]]](
        list
    )
    for combination, build_job in chosen:
        if not build_job.rebuild:  # such builds record the goldens themselves
            groups[combination.spec.name, build_job.settings.get("precision")].append(
                (combination, build_job)
            )
    several = [group for group in groups.values() if len(group) > 1]
    with ThreadPoolExecutor(READERS) as pool, Hashes() as hashes:
        need_tasks = list(
            pool.map(lambda group: _needs_task(group[0], store, hashes), several)
        )
    tasks: dict[str, Task] = {}
    for group, needs_task in zip(several, need_tasks, strict=True):
        if needs_task:
            task = _task(group, farm)
            tasks |= {
                history_name(combination.spec.name, combination.target.name): task
                for combination, _ in group
            }
    return tasks


def _needs_task(
    chosen: tuple[Combination, job.Job], store: Folders, hashes: Hashes
) -> bool:
    """Whether recording takes long enough and the store lacks the goldens."""
    combination, build_job = chosen
    known = (last(store.store.url, _name(combination, build_job)) or {}).get(
        "goldens_seconds"
    )
    if isinstance(known, int | float):
        is_long = known >= LEAST_SECONDS
    else:
        is_long = combination.spec.path.stat().st_size >= LEAST_BYTES
    return is_long and not _exists(combination, build_job, store, hashes)


def _exists(
    combination: Combination, build_job: job.Job, store: Folders, hashes: Hashes
) -> bool:
    """Whether the store has the goldens, as determined with this machine's versions."""
    precision = build_job.settings.get("precision") or combination.spec.precision
    with contextlib.suppress(OSError, EnvironmentProblem):
        parts = shared_request(replace(combination.spec, precision=precision), hashes)
        key = goldens_key(combination.spec.name, parts)
        return store.find(KIND, key) is not None
    return False


def _name(combination: Combination, build_job: job.Job) -> str:
    precision = build_job.settings.get("precision")
    return history_name(
        combination.spec.name, f"{GROUP}-{precision}" if precision else GROUP
    )


def _task(group: Chosen, farm: Farm) -> Task:
    """Create the task. It takes the cores of the smallest build and the memory of the largest. If
    the builds have images, it runs in the first of these.
    """
    first, first_job = group[0]
    targets = [combination.target for combination, _ in group]
    memory = [target.memory_mib for target in targets if target.memory_mib is not None]
    cpus = min(target.cpus for target in targets)
    image = next((target.image for target in targets if target.image), None)
    takes = Target(GROUP, cpus=cpus, memory_mib=max(memory, default=None), image=image)
    settings = {**first_job.settings, "flavor": "auto"}
    work = replace(
        first_job, target=GROUP, settings=settings, build={}, only_goldens=True
    )
    return Task(
        _name(first, first_job),
        GROUP,
        (work.to_json(), farm.environment, int(cpus)),
        cluster.ray_options(takes, first.spec.limits.memory_mib),
        cluster.demand(takes),
    )


def seconds_to_remember(ended: Mapping[str, object]) -> dict[str, float]:
    """Return the seconds to store for a task that recorded goldens; empty for other tasks."""
    result = ended.get("result")
    if ended.get("state") != "recorded" or not isinstance(result, Mapping):
        return {}
    seconds = result.get("seconds", {})
    return {"goldens_seconds": float(seconds.get("goldens", 0.0))}
