"""Branches of a torch segment whose arms hold engines: found, converted, recorded, and walked.

Only the fused layout runs them: there a branch is one process's decision. In an ensemble the
segment is one torch step, with the whole branch in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from builder.manifest.spec import ModelSpec

if TYPE_CHECKING:
    from builder.conversion import Conversion
    from builder.lowering import LoweredGraph
    from builder.partition import Branch, Segment
    from builder.repository.cut import Pieces
    from builder.triton import Golden

    Cutter = Callable[[LoweredGraph, ModelSpec], Pieces]

Place = tuple[int, ...]
"""Where an engine stands in an arm: (segment, part, arm, segment within the arm), and so on
inwards.
"""


@dataclass(frozen=True)
class Taken:
    """A branch with its arms cut into pieces."""

    branch: Branch
    arms: tuple[Pieces, Pieces]


def parts(segment: Segment, spec: ModelSpec, cutter: Cutter) -> tuple[LoweredGraph | Taken, ...]:
    """The parts of a torch segment in running order, graphs and Taken branches; none where no arm
    is worth an engine.

    `cutter` cuts the graph of an arm as the model's was.
    """
    from builder import partition
    from builder.partition.shapes import infer

    places = partition.branches(segment.lowered)
    if not places:
        return ()
    shapes = infer(segment.lowered, segment.specs, segment.profiles)
    found = [
        part if not isinstance(part, partition.Branch) else _taken(part, shapes, spec, cutter)
        for part in partition.take_apart(segment.lowered, places)
    ]
    return tuple(found) if any(isinstance(part, Taken) for part in found) else ()


def _taken(branch: Branch, shapes: Any, spec: ModelSpec, cutter: Cutter) -> LoweredGraph | Taken:
    """The branch in pieces, or as the one graph that it is where no arm is worth it."""
    yes, no = (_pieces(arm, branch, shapes, spec, cutter) for arm in branch.arms)
    worth = any(_is_worth(pieces, spec) for pieces in (yes, no))
    return Taken(branch, (yes, no)) if worth else branch.whole


def _pieces(
    arm: LoweredGraph, branch: Branch, shapes: Any, spec: ModelSpec, cutter: Cutter
) -> Pieces:
    """The arm in pieces; whole, by torch, where the shape of something that it reads depends on
    data.
    """
    found = [shapes.spec(branch.values[name], name) for name in arm.inputs]
    if not found or None in found:
        return _whole(arm)
    own = {axis: span for _, axes in found for axis, span in axes.items()}
    profiles = tuple({**profile, **own} for profile in shapes.profiles)
    fallback = replace(spec.fallback, ranges={}, require_full=False)
    return cutter(
        arm,
        replace(spec, inputs=tuple(one for one, _ in found), profiles=profiles, fallback=fallback),
    )


def _whole(arm: LoweredGraph) -> Pieces:
    from builder.partition import Partition, Segment
    from builder.repository.cut import Pieces

    unknown = ((None,) * len(arm.inputs), (None,) * len(arm.outputs))
    segment = Segment(
        "torch", arm, arm.inputs, arm.outputs, *unknown, (), (), len(list(arm.graph.nodes())), 0, 0
    )
    return Pieces(Partition((segment,), (), (), arm.inputs, arm.outputs), (None,), ())


def _is_worth(pieces: Pieces, spec: ModelSpec) -> bool:
    """Whether the arm's engines save more than entering them costs; a min_block_size of 1 asks no
    such question.
    """
    from builder.partition import cost

    pairs = zip(pieces.partition.segments, pieces.conversions, strict=True)
    engines = [segment for segment, conversion in pairs if conversion is not None]
    saved = sum(cost.seconds_saved(segment.nodes, segment.flops, 0) for segment in engines)
    inner = any(isinstance(part, Taken) for found in pieces.parts.values() for part in found)
    return inner or (bool(engines) and (spec.fallback.min_block_size == 1 or saved > 0))


def engines(pieces: Pieces, place: Place = ()) -> Iterator[tuple[Place, Conversion]]:
    """Every engine in the arms, at any depth, and where it stands."""
    for number, found in pieces.parts.items():
        for position, part in enumerate(found):
            for index, arm in enumerate(part.arms if isinstance(part, Taken) else ()):
                here = (*place, number, position, index)
                for inner, conversion in enumerate(arm.conversions):
                    if conversion is not None:
                        yield (*here, inner), conversion
                yield from engines(arm, here)


def label(place: Place) -> str:
    """`segment 1, part 0, arm true, segment 2`."""
    words = []
    for start in range(0, len(place) - 1, 3):
        words.append(
            f"segment {place[start]}, part {place[start + 1]}, arm"
            f" {'false' if place[start + 2] else 'true'}"
        )
    return ", ".join([*words, f"segment {place[-1]}"])


Recorded = dict[Place, tuple["Golden", ...]]


def record(
    pieces: Pieces, hops: Sequence[Sequence[Golden]], spec: ModelSpec, place: Place = ()
) -> Recorded:
    """The goldens of every engine in the arms: both arms are run on what the goldens bring to their
    branch, for the data that take the other one are seldom among them. An arm that cannot run on it
    (an assertion) is left out.
    """
    found: Recorded = {}
    for number, inner in pieces.parts.items():
        for golden in hops[number]:
            _record_parts(inner, golden, spec, (*place, number), found)
    return found


def _record_parts(
    inner: Sequence[LoweredGraph | Taken],
    golden: Golden,
    spec: ModelSpec,
    place: Place,
    found: Recorded,
) -> None:
    from builder.parity.arrays import to_torch

    values = {name: to_torch(array) for name, array in golden.inputs.items()}
    for position, part in enumerate(inner):
        if not isinstance(part, Taken):
            values.update(
                zip(part.outputs, part.run(*(values[name] for name in part.inputs)), strict=True)
            )
            continue
        for index, (arm, lowered) in enumerate(zip(part.arms, part.branch.arms, strict=True)):
            _record_arm(arm, lowered, values, golden.name, spec, (*place, position, index), found)
        whole = part.branch.whole
        values.update(
            zip(whole.outputs, whole.run(*(values[name] for name in whole.inputs)), strict=True)
        )


def _record_arm(
    arm: Pieces,
    lowered: LoweredGraph,
    values: Mapping[str, Any],
    name: str,
    spec: ModelSpec,
    place: Place,
    found: Recorded,
) -> None:
    from builder.parity.arrays import to_numpy
    from builder.repository import hops
    from builder.triton import Golden

    given = {n: values[n] for n in lowered.inputs}
    try:
        made = lowered.run(*given.values())
    except Exception:
        return
    sides = (given, dict(zip(lowered.outputs, made, strict=True)))
    golden = Golden(name, *({n: to_numpy(t) for n, t in side.items()} for side in sides))
    chain = hops.record_hops(arm.partition, [golden], spec)
    for number, own in enumerate(chain):
        here = (*place, number)
        found[here] = (*found.get(here, ()), *own)
    for here, inner in record(arm, chain, spec, place).items():
        found[here] = (*found.get(here, ()), *inner)
