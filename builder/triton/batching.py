"""Decides whether Triton may batch a model's requests, and the maximum size. The shapes propose a
size, and the goldens confirm it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builder.errors import UsageError
from builder.manifest import Range, axis_ranges, shared_first_axis
from builder.triton.artifact import EnsembleArtifact, Golden, ModelArtifact

ROW_RTOL, ROW_ATOL = 1e-2, 1e-3
"""Tolerances between row 0 alone and row 0 in a batch. They allow for another kernel, but are far
too narrow for outputs that depend on other rows.
"""


@dataclass(frozen=True)
class BatchChoice:
    """Triton's max_batch_size (0: no batching) and the reason."""

    max_batch_size: int
    reason: str


def choose(artifact: ModelArtifact) -> BatchChoice:
    """Return a batch size if all inputs share a named first axis, the profiles cover it from 1, and
    the goldens' outputs follow it row by row.

    Raises UsageError if the manifest requires batching that the model does not allow, or a
    preferred size above the maximum.
    """
    batching = artifact.spec.batching
    if batching.enabled is False:
        return BatchChoice(0, "the manifest has batching.enabled: false")
    obstacle, size = _obstacle(artifact)
    if obstacle is None:
        _check_preferred(batching.preferred, size)
        return BatchChoice(
            size,
            f"axis {_axis(artifact)!r} is first in every tensor; profiles cover 1 to {size}",
        )
    if batching.enabled or batching.preferred:
        raise UsageError(
            f"model {artifact.spec.name!r} cannot be batched by Triton: {obstacle}",
            fix="remove batching.enabled",
        )
    return BatchChoice(0, obstacle)


def _obstacle(artifact: ModelArtifact) -> tuple[str | None, int]:
    axis = _axis(artifact)
    if optional := (*artifact.flags, *artifact.unknown):
        name = optional[0]
        return (
            f"output {name!r} may be None for one request and a tensor for another",
            0,
        )
    if artifact.row_dependence and not artifact.spec.batching.enabled:
        return artifact.row_dependence, 0
    if axis is None:
        return "the inputs do not share one dynamic, named first axis", 0
    fixed_first_axis = [
        io.name for io in artifact.outputs if list(io.shape[:1]) != [-1]
    ]
    if fixed_first_axis:
        return (
            f"the first axis of output {', '.join(map(repr, fixed_first_axis))} is not dynamic",
            0,
        )
    size = min(_reaches(artifact, axis), default=0)
    if size < 1:
        return _without_size_one(axis), 0
    return _contradiction(artifact), size


def _without_size_one(axis: str) -> str:
    return f"the profiles of axis {axis!r} do not begin at 1"


def lost_batches(artifact: ModelArtifact | EnsembleArtifact) -> tuple[str, ...]:
    """The warning about profiles with different batches, if any. For an ensemble, that of its first
    step.
    """
    steps = artifact.steps if isinstance(artifact, EnsembleArtifact) else (artifact,)
    for step in steps:
        warning = _narrowed(step)
        if warning:
            return (warning,)
    return ()


def _narrowed(artifact: ModelArtifact) -> str | None:
    """Describe the cost of profiles with different batches.

    Triton has one maximum batch for all of a model's shapes, so no request reaches the larger
    batches. None if there is no cost.
    """
    axis, (obstacle, size) = _axis(artifact), _obstacle(artifact)
    if (
        axis is None
        or artifact.spec.batching.enabled is False
        or obstacle not in (None, _without_size_one(axis))
    ):
        return None
    ranges = [profile[axis] for profile in _profiles(artifact)]
    spans = [(low, high) for low, _, high in ranges]
    reaches = _reaches(artifact, axis)
    most = max(range(len(spans)), key=lambda number: spans[number][1], default=0)
    differing = [number for number, span in enumerate(spans) if span != spans[most]]
    if not differing or spans[most][1] <= size:
        return None
    pair = sorted((most, min(differing, key=lambda number: reaches[number])))
    sizes = " and ".join(
        f"p{number} ({axis} {spans[number][0]} to {spans[number][1]})"
        for number in pair
    )
    effect = "does not batch the model"
    if size:
        effect = f"accepts batches up to {size} only"
    return (
        f"profiles {sizes} differ in their batch, and Triton has one maximum batch size"
        f" for all shapes: it {effect}. Give both the range 1 to {spans[most][1]}, or"
        " each a model of its own. With `batching: {enabled: false}` Triton does not"
        " batch requests, and a client may send any batch of a profile"
    )


def _axis(artifact: ModelArtifact) -> str | None:
    return shared_first_axis(artifact.spec.inputs)


def _reaches(artifact: ModelArtifact, axis: str) -> list[int]:
    """The maximum batch of each profile, from 1 without a gap, for all sizes of its other axes."""
    profiles = _profiles(artifact)
    other_axes = [
        {name: span for name, span in profile.items() if name != axis}
        for profile in profiles
    ]
    reaches = []
    for required in other_axes:
        pairs = zip(profiles, other_axes, strict=True)
        spans = [
            profile[axis] for profile, others in pairs if _includes(others, required)
        ]
        reaches.append(_reach(spans))
    return reaches


def _profiles(artifact: ModelArtifact) -> list[dict[str, Range]]:
    return [
        {**axis_ranges(artifact.spec.inputs), **profile}
        for profile in artifact.profiles
    ]


def _includes(spans: Mapping[str, Range], inner: Mapping[str, Range]) -> bool:
    """Whether `spans` include every size of `inner`."""
    for name, (low, _, high) in inner.items():
        least, _, most = spans[name]
        if low < least or high > most:
            return False
    return True


def _reach(spans: Iterable[Range]) -> int:
    reach = 0
    for low, _, high in sorted(spans):
        if low <= reach + 1 and (reach or low == 1):
            reach = max(reach, high)
    return reach


def _contradiction(artifact: ModelArtifact) -> str | None:
    """Return why a golden excludes batching: an output does not follow the batch, or a row depends
    on other rows.
    """
    for golden in artifact.goldens:
        batch = next(iter(golden.inputs.values())).shape[0]
        for name, array in golden.outputs.items():
            if array.shape[:1] != (batch,):
                return (
                    f"output {name!r} has shape {list(array.shape)} for a batch of {batch} (golden"
                    f" {golden.name})"
                )
    return _mixing(artifact.goldens)


ROLLED = "-rolled"
"""Suffix of a golden whose input rows are those of another golden in another order. Its outputs are
not reordered accordingly.
"""


def moved(
    golden: Golden, rolled: Golden, rows: int, ignored: Collection[str] = ()
) -> bool:
    """Whether the rows of an output, other than those of `ignored`, differ from the golden's rows
    shifted by one, as the inputs of `rolled` are. `rows` is the batch size.
    """
    for name, array in golden.outputs.items():
        moved_array = rolled.outputs.get(name)
        if name in ignored or array.shape[:1] != (rows,):
            continue
        if moved_array is None:
            continue
        if not same_rows(moved_array, np.roll(array, 1, 0)):
            return True
    return golden.outputs.keys() != rolled.outputs.keys()


def _mixing(goldens: tuple[Golden, ...]) -> str | None:
    whole = {golden.name: golden for golden in goldens}
    for row in goldens:
        if row.name.endswith(ROLLED):
            return (
                "a row's output depends on its position in the batch (golden"
                f" {row.name})"
            )
        if not row.name.endswith("-row"):
            continue
        batch = _batch_of(row.name.removesuffix("-row"), whole)
        if batch is None:
            continue
        for name, array in row.outputs.items():
            if not same_rows(array, batch.outputs[name][:1]):
                return (
                    f"output {name!r} of a row depends on its batch's other rows (goldens"
                    f" {row.name}, {batch.name})"
                )
    return None


def _batch_of(name: str, goldens: Mapping[str, Golden]) -> Golden | None:
    """The golden with several rows from which the `-row` golden of this name was taken."""
    for base in (f"{name}-opt", f"{name}-max", name):
        golden = goldens.get(base)
        if golden is not None and _rows(golden) > 1:
            return golden
    return None


def _rows(golden: Golden) -> int:
    return max(
        (array.shape[0] for array in golden.outputs.values() if array.ndim), default=1
    )


def same_rows(left: NDArray[Any], right: NDArray[Any]) -> bool:
    """Whether two answers to the same rows are equal, apart from the rounding of other kernels."""
    if left.shape != right.shape:
        return False
    scale = float(np.nanmax(np.abs(right.astype(np.float64)), initial=0.0))
    atol = ROW_ATOL
    if np.isfinite(scale):
        atol = ROW_ATOL * max(scale, 1e-6)
    return np.allclose(
        left.astype(np.float64),
        right.astype(np.float64),
        rtol=ROW_RTOL,
        atol=atol,
        equal_nan=True,
    )


def _check_preferred(preferred: tuple[int, ...], size: int) -> None:
    bad = [
        size_requested
        for size_requested in preferred
        if not 1 <= size_requested <= size
    ]
    if bad:
        raise UsageError(
            f"batching.preferred {bad} is outside 1 to {size}",
            fix=f"use sizes up to the profiles' maximum, {size}",
        )
