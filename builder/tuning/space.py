"""The possible configurations of a model, each as a change of its manifest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from builder.manifest import ModelSpec, shared_first_axis

Value = int | str
Configuration = Mapping[str, Value]
"""The value of each dimension by name."""

INSTANCES = "instances"
MAX_BATCH = "max_batch"
DELAY = "queue_delay_us"
PREFERRED = "preferred"
PROFILES = "profiles"
GRAPHS = "graphs"
LAYOUT = "layout"
RUNTIME = "runtime"
NONE, HALF, FULL = "none", "half", "full"
"""Preferred batch sizes: none, half of the maximum, the maximum."""
ONE, STATIC = "one", "static"
"""Profiles: those of the manifest, or additional static ones (`batch_sizes: auto`)."""
PLAN = "plan"
TORCH = "torch"
ALL_OPERATORS = "aten::*"
"""Value of fallback.ops with which torch serves the whole model."""
DELAYS = (0, 200, 1000, 5000)
MOST_INSTANCES = 4


@dataclass(frozen=True)
class Dimension:
    """A setting with its values in the order of the trials."""

    name: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Values:
    """The values that the user requests. Empty means the default ones."""

    instances: Sequence[int] = ()
    max_batch: Sequence[int] = ()
    queue_delay_us: Sequence[int] = ()
    preferred: Sequence[str] = ()
    profiles: Sequence[str] = ()
    graphs: Sequence[str] = ()
    layout: Sequence[str] = ()
    runtime: Sequence[str] = ()


@dataclass(frozen=True)
class Facts:
    """Facts about the model from the published default.

    Triton's `max_batch_size` (0: no batching), whether the server uses dynamic batching
    (`dynamic`), the number of `segments`, whether a plan runs on this host, and whether Triton's
    TensorRT backend runs it (`backend`). `no_graphs` is the reason if its CUDA graphs are refused.
    """

    max_batch_size: int
    dynamic: bool
    segments: int
    plan_executes: bool
    backend: bool
    no_graphs: str | None = None


@dataclass(frozen=True)
class Space:
    """All configurations of the dimensions. `default` is that of the manifest. `fixed` has the
    reason for each dimension that is not searched.
    """

    default: Configuration
    dimensions: tuple[Dimension, ...]
    fixed: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(set(map(key, self)))

    def __iter__(self) -> Iterator[Configuration]:
        """Yield each configuration in canonical form, possibly several times."""
        names = [dimension.name for dimension in self.dimensions]
        for values in itertools.product(
            *(dimension.values for dimension in self.dimensions)
        ):
            yield self.canonical(dict(zip(names, values, strict=True)))

    def canonical(self, configuration: Configuration) -> Configuration:
        """Return the configuration with every dimension, without settings that have no effect.

        Triton uses preferred sizes only while it waits for requests.
        """
        whole = {**self.default, **configuration}
        if whole.get(DELAY) == 0 and PREFERRED in whole:
            whole[PREFERRED] = NONE
        return whole


def key(configuration: Configuration) -> tuple[tuple[str, Value], ...]:
    """A key that equal configurations share."""
    return tuple(sorted(configuration.items()))


def space(
    spec: ModelSpec,
    facts: Facts,
    requested: Values,
    *,
    cores: int,
    limit_ms: float | None,
) -> Space:
    """Return the space of one model.

    Defaults depend on the host and the model; `requested` replaces them. A queue delay of more than
    half the latency limit (milliseconds) is not tried by default.
    """
    fixed: dict[str, str] = {}
    default = _default(spec, facts)
    proposed = {
        INSTANCES: _instances(spec, requested, cores, fixed),
        **_batching(spec, facts, requested, limit_ms, fixed),
        PROFILES: _profiles(spec, facts, requested, fixed),
        GRAPHS: _graphs(facts, requested, fixed),
        LAYOUT: _layout(facts, requested, fixed),
        RUNTIME: _runtime(facts, requested, fixed),
    }
    dimensions = []
    for name, values in proposed.items():
        default_value = default.get(name)
        if values and default_value is not None:
            values = (*values, default_value)
        choices = tuple(dict.fromkeys(values))
        if len(choices) > 1:
            if all(isinstance(value, int) for value in choices):
                choices = tuple(sorted(choices))
            dimensions.append(Dimension(name, choices))
    return Space(default, tuple(dimensions), fixed)


def _default(spec: ModelSpec, facts: Facts) -> dict[str, Value]:
    """The configuration of the manifest."""
    largest = facts.max_batch_size
    preferred = spec.batching.preferred
    name_by_sizes = {(): NONE, (largest,): FULL, (max(1, largest // 2),): HALF}
    return {
        INSTANCES: spec.instances,
        MAX_BATCH: largest,
        DELAY: spec.batching.max_queue_delay_us,
        PREFERRED: name_by_sizes.get(preferred, ",".join(map(str, preferred))),
        PROFILES: STATIC if spec.batch_sizes else ONE,
        GRAPHS: FULL if spec.batching.graphs else NONE,
        LAYOUT: spec.layout,
        RUNTIME: TORCH if ALL_OPERATORS in spec.fallback.ops else PLAN,
    }


def _instances(
    spec: ModelSpec, requested: Values, cores: int, fixed: dict[str, str]
) -> Sequence[Value]:
    if spec.triton.get("instance_group"):
        fixed[INSTANCES] = "the manifest has triton.instance_group"
        return ()
    return requested.instances or range(1, min(MOST_INSTANCES, max(2, cores)) + 1)


def _batching(
    spec: ModelSpec,
    facts: Facts,
    requested: Values,
    limit_ms: float | None,
    fixed: dict[str, str],
) -> dict[str, Sequence[Value]]:
    """The dimensions of the dynamic batcher: maximum batch, queue delay and preferred sizes."""
    if not facts.max_batch_size or not facts.dynamic:
        for name in (MAX_BATCH, DELAY, PREFERRED):
            fixed[name] = "Triton does not join requests of this model"
        return {}
    most = None
    if limit_ms is not None:
        most = limit_ms * 1e3 / 2
    delays = [delay for delay in DELAYS if most is None or delay <= most]
    sizes: Sequence[Value] = requested.max_batch
    if sizes and _batch_range(spec) is None:
        fixed[MAX_BATCH] = (
            "the manifest has several profiles, or its batches do not begin at 1"
        )
        sizes = ()
    elif not sizes:
        fixed[MAX_BATCH] = (
            "clients may send batches of this size; try others with --max-batch"
        )
    return {
        MAX_BATCH: sizes,
        DELAY: requested.queue_delay_us or delays,
        PREFERRED: requested.preferred or (NONE, HALF),
    }


def _batch_range(spec: ModelSpec) -> tuple[str, tuple[int, int, int]] | None:
    """The batch axis and its range, if the manifest has one profile with it."""
    axis = shared_first_axis(spec.inputs)
    written = spec.profiles[len(spec.batch_sizes) :]
    if axis is None or len(written) != 1 or written[0][axis][0] > 1:
        return None
    return axis, written[0][axis]


def _profiles(
    spec: ModelSpec, facts: Facts, requested: Values, fixed: dict[str, str]
) -> Sequence[Value]:
    if not facts.plan_executes:
        fixed[PROFILES] = "torch runs the model on this host"
    elif not facts.max_batch_size or _batch_range(spec) is None:
        fixed[PROFILES] = "the model has no batch axis with one range"
    else:
        return requested.profiles or (ONE, STATIC)
    return ()


def _graphs(facts: Facts, requested: Values, fixed: dict[str, str]) -> Sequence[Value]:
    if not facts.backend or not facts.max_batch_size:
        fixed[GRAPHS] = "Triton's TensorRT backend does not serve this model here"
        return ()
    if facts.no_graphs:
        fixed[GRAPHS] = facts.no_graphs
        return ()
    return requested.graphs or (NONE, FULL)


def _layout(facts: Facts, requested: Values, fixed: dict[str, str]) -> Sequence[Value]:
    if facts.segments < 2:
        fixed[LAYOUT] = "the model is one segment"
        return ()
    return requested.layout or ("fused", "ensemble")


def _runtime(facts: Facts, requested: Values, fixed: dict[str, str]) -> Sequence[Value]:
    if not facts.plan_executes:
        fixed[RUNTIME] = "torch runs the model on this host"
        return ()
    return requested.runtime or (PLAN, TORCH)


def changes(
    spec: ModelSpec, default: Configuration, chosen: Configuration
) -> dict[str, Any]:
    """The manifest keys, in the form of `editing.edit`, that change `default` to `chosen`."""
    entries: dict[str, Any] = {}
    batching: dict[str, Any] = {}
    most = int(chosen[MAX_BATCH])
    differing = {name for name, value in chosen.items() if value != default.get(name)}
    if MAX_BATCH in differing:
        entries["dims"] = _dims(spec, most)
    if INSTANCES in differing:
        entries["instances"] = chosen[INSTANCES]
    if DELAY in differing:
        batching["max_queue_delay_us"] = chosen[DELAY]
    if PREFERRED in differing or (MAX_BATCH in differing and chosen[PREFERRED] != NONE):
        batching["preferred"] = _sizes(chosen[PREFERRED], most)
    if GRAPHS in differing:
        batching["graphs"] = _sizes(chosen[GRAPHS], most)
    if batching:
        entries["batching"] = batching
    if PROFILES in differing:
        entries["batch_sizes"] = "auto" if chosen[PROFILES] == STATIC else []
    if LAYOUT in differing:
        entries["layout"] = chosen[LAYOUT]
    if RUNTIME in differing:
        entries["fallback"] = {
            "ops": [ALL_OPERATORS] if chosen[RUNTIME] == TORCH else []
        }
    return entries


def _sizes(name: Value, most: int) -> list[int]:
    """The batch sizes of a value of PREFERRED or GRAPHS."""
    if name == NONE:
        return []
    if name == HALF:
        return [max(1, most // 2)]
    if name == FULL:
        return [most]
    return [size for size in map(int, str(name).split(",")) if size <= most]


def _dims(spec: ModelSpec, most: int) -> dict[str, Any]:
    batch_range = _batch_range(spec)
    assert batch_range is not None  # the dimension exists only in that case
    axis, (low, usual, _) = batch_range
    return {axis: {"min": low, "opt": min(usual, most), "max": most}}
