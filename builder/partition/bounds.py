"""The user's ranges for data-dependent sizes: their values, and the names of their axes."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from builder.errors import UsageError
from builder.manifest import Profile, Range, did_you_mean
from builder.names import unique_name
from builder.partition.boundary import tensor_name
from builder.partition.view import Step


@dataclass(frozen=True)
class Axis:
    """An axis with a data-dependent length within a range."""

    name: str
    range: Range


def axes(
    steps: Sequence[Step], ranges: Mapping[str, Range], profiles: Sequence[Profile]
) -> dict[str, Axis]:
    """The data-dependent axis of each value. All data-dependent sizes of one node are one axis."""
    if not ranges:
        return {}
    axis_of_value: dict[str, Axis] = {}
    used_names = {name for profile in profiles for name in profile}
    for step in steps:
        key = _key_of(step, ranges)
        if key is not None and not step.is_free:
            name = unique_name(f"{tensor_name(step.outputs[0])}_size", used_names)
            used_names.add(name)
            axis_of_value.update(dict.fromkeys(step.outputs, Axis(name, ranges[key])))
    return axis_of_value


def _key_of(step: Step, ranges: Mapping[str, Range]) -> str | None:
    """The first key of the ranges that names an output of the step."""
    for key in ranges:
        if any(_names(key, step.kind, value) for value in step.outputs):
            return key
    return None


def check(ranges: Mapping[str, Range], opened: Mapping[str, str]) -> None:
    """Raise UsageError for a range that matches no value. `opened` has the values with
    data-dependent shapes, and their operators.
    """
    for key in ranges:
        if not any(_names(key, kind, value) for value, kind in opened.items()):
            candidates = [*dict.fromkeys(opened.values()), *map(tensor_name, opened)]
            raise UsageError(
                f"fallback.ranges: {key!r} matches no tensor with a data-dependent shape",
                fix=did_you_mean(key, candidates)
                or "remove it: no shape of this model depends on data",
            )


def _names(key: str, kind: str, value: str) -> bool:
    return key in (value, tensor_name(value)) or fnmatch.fnmatchcase(kind, key)
