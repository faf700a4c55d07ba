"""Decides which model is built for which target, and in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from builder.farm.config import Farm, Target, known_target
from builder.manifest import ModelSpec, loading
from builder.store import last

READERS = 16
"""The number of concurrent reads of the store: an object store takes tens of milliseconds each."""


@dataclass(frozen=True)
class Combination:
    """One model for one target. `because` is set if it is not built."""

    spec: ModelSpec
    target: Target
    because: str = ""


def combinations(specs: Sequence[ModelSpec], farm: Farm) -> list[Combination]:
    """Return every combination of a model and a target of the farm.

    A model's manifest may choose targets, and the farm file may exclude some. Raises UsageError for
    a target that the farm does not have.
    """
    for spec in specs:
        for index, name in enumerate(spec.targets):
            known_target(farm, name, loading.manifest_location(spec, "targets", index))
    return [
        Combination(spec, target, _exclusion(spec, target, farm))
        for spec in specs
        for target in farm.targets
    ]


def _exclusion(spec: ModelSpec, target: Target, farm: Farm) -> str:
    if spec.targets and not set(target.names) & set(spec.targets):
        return "the manifest's targets do not name it"
    for rule in farm.exclude:
        if rule.matches(spec.name, target):
            return rule.because
    return ""


def history_name(model: str, target: str) -> str:
    """The name under which the store keeps the time of the last build for a target."""
    return f"{model}@{target}"


def seconds_before(store: str, names: Sequence[str]) -> list[float | None]:
    """The seconds of the last build by history name, as far as the store has them."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(lambda name: _seconds(last(store, name) or {}), names))


def _seconds(record: Mapping[str, Any]) -> float | None:
    seconds = record.get("seconds")
    if isinstance(seconds, int | float):
        return float(seconds)
    return None


def longest_first(
    chosen: Sequence[Combination], seconds: Sequence[float | None]
) -> list[tuple[Combination, float | None]]:
    """Sort the combinations into the order in which they are started.

    Those without a recorded time come first, by the size of the model file. The others follow, the
    longest first. A long build that starts last would leave all other machines idle.
    """
    pairs = list(zip(chosen, seconds, strict=True))
    unknown = [pair for pair in pairs if pair[1] is None]
    known = [pair for pair in pairs if pair[1] is not None]
    unknown.sort(key=lambda pair: -pair[0].spec.path.stat().st_size)
    known.sort(key=lambda pair: -(pair[1] or 0.0))
    return [*unknown, *known]
