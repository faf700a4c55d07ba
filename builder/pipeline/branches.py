"""`prim::If` nodes of torch segments with engines inside their branches: partition, conversion and
goldens.

Only the fused layout runs them, because one process must choose the branch. In an ensemble the
segment is one torch step that contains the whole `if`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from builder import parity, partition
from builder.manifest import ModelSpec
from builder.pipeline import segment_goldens

if TYPE_CHECKING:
    from builder.conversion import Conversion
    from builder.lowering import LoweredGraph
    from builder.partition import Branch, Segment
    from builder.pipeline.fallback import PartitionedConversion
    from builder.triton import Golden

    Partitioner = Callable[[LoweredGraph, ModelSpec], PartitionedConversion]

Location = tuple[int, ...]
"""The location of an engine: (segment, part, branch, segment within the branch), continued for
inner branches.
"""


@dataclass(frozen=True)
class SplitBranch:
    """An `if` whose two branches are partitioned."""

    branch: Branch
    sides: tuple[PartitionedConversion, PartitionedConversion]


def parts(
    segment: Segment, spec: ModelSpec, partitioner: Partitioner
) -> tuple[LoweredGraph | SplitBranch, ...]:
    """The parts of a torch segment in execution order, graphs and SplitBranch; empty if no branch
    benefits from an engine.

    `partitioner` partitions the graph of a branch as the model's was.
    """
    ifs = partition.branches(segment.lowered)
    if not ifs:
        return ()
    shapes = partition.infer_shapes(segment.lowered, segment.specs, segment.profiles)
    parts: list[LoweredGraph | SplitBranch] = []
    for part in partition.take_apart(segment.lowered, ifs):
        if isinstance(part, partition.Branch):
            parts.append(_split(part, shapes, spec, partitioner))
        else:
            parts.append(part)
    if any(isinstance(part, SplitBranch) for part in parts):
        return tuple(parts)
    return ()


def _split(
    branch: Branch, shapes: Any, spec: ModelSpec, partitioner: Partitioner
) -> LoweredGraph | SplitBranch:
    """The partitioned `if`, or its whole graph if no branch benefits from an engine."""
    yes, no = (
        _partitioned(side, branch, shapes, spec, partitioner) for side in branch.blocks
    )
    worth = any(_is_worthwhile(partitioned, spec) for partitioned in (yes, no))
    return SplitBranch(branch, (yes, no)) if worth else branch.whole


def _partitioned(
    side: LoweredGraph,
    branch: Branch,
    shapes: Any,
    spec: ModelSpec,
    partitioner: Partitioner,
) -> PartitionedConversion:
    """The partition of the branch.

    Torch runs all of it if the shape of an input depends on data.
    """
    specs = [shapes.spec(branch.values[name], name) for name in side.inputs]
    if not specs or None in specs:
        return _in_torch(side)
    ranges = {axis: span for _, axes in specs for axis, span in axes.items()}
    profiles = tuple({**profile, **ranges} for profile in shapes.profiles)
    fallback = replace(spec.fallback, ranges={}, require_full=False)
    return partitioner(
        side,
        replace(
            spec,
            inputs=tuple(tensor_spec for tensor_spec, _ in specs),
            profiles=profiles,
            fallback=fallback,
        ),
    )


def _in_torch(side: LoweredGraph) -> PartitionedConversion:
    from builder.pipeline.fallback import PartitionedConversion

    unknown = ((None,) * len(side.inputs), (None,) * len(side.outputs))
    segment = partition.Segment(
        "torch",
        side,
        side.inputs,
        side.outputs,
        *unknown,
        (),
        (),
        len(list(side.graph.nodes())),
        0,
        0,
    )
    return PartitionedConversion(
        partition.Partition((segment,), (), (), side.inputs, side.outputs), (None,), ()
    )


def _is_worthwhile(partitioned: PartitionedConversion, spec: ModelSpec) -> bool:
    """Whether the branch's engines save more time than their calls cost. A min_block_size of 1
    accepts every engine.
    """
    for inner_parts in partitioned.parts.values():
        if any(isinstance(part, SplitBranch) for part in inner_parts):
            return True
    pairs = zip(partitioned.partition.segments, partitioned.conversions, strict=True)
    engines = [segment for segment, conversion in pairs if conversion is not None]
    if engines and spec.fallback.min_block_size == 1:
        return True
    return (
        sum(
            partition.cost.seconds_saved(segment.nodes, segment.flops, 0)
            for segment in engines
        )
        > 0
    )


def engines(
    partitioned: PartitionedConversion, location: Location = ()
) -> Iterator[tuple[Location, Conversion]]:
    """Every engine inside branches, at any depth, and its location."""
    for number, inner_parts in partitioned.parts.items():
        for position, part in enumerate(inner_parts):
            for index, side in enumerate(
                part.sides if isinstance(part, SplitBranch) else ()
            ):
                here = (*location, number, position, index)
                for inner, conversion in enumerate(side.conversions):
                    if conversion is not None:
                        yield (*here, inner), conversion
                yield from engines(side, here)


def label(location: Location) -> str:
    """`segment 1, part 0, branch true, segment 2`."""
    words = []
    for start in range(0, len(location) - 1, 3):
        words.append(
            f"segment {location[start]}, part {location[start + 1]}, branch"
            f" {'false' if location[start + 2] else 'true'}"
        )
    return ", ".join([*words, f"segment {location[-1]}"])


Recorded = dict[Location, tuple["Golden", ...]]


def record(
    partitioned: PartitionedConversion,
    segment_goldens: Sequence[Sequence[Golden]],
    spec: ModelSpec,
    location: Location = (),
) -> Recorded:
    """The goldens of every engine inside branches. Both branches are run on the values that reach
    the `if`, because goldens rarely take both. A branch that raises on them is left out.
    """
    goldens: Recorded = {}
    for number, inner in partitioned.parts.items():
        for golden in segment_goldens[number]:
            _record_parts(inner, golden, spec, (*location, number), goldens)
    return goldens


def _record_parts(
    inner: Sequence[LoweredGraph | SplitBranch],
    golden: Golden,
    spec: ModelSpec,
    location: Location,
    goldens: Recorded,
) -> None:
    values = {name: parity.to_torch(array) for name, array in golden.inputs.items()}
    for position, part in enumerate(inner):
        if not isinstance(part, SplitBranch):
            _run(part, values)
            continue
        for index, (side, lowered) in enumerate(
            zip(part.sides, part.branch.blocks, strict=True)
        ):
            _record_side(
                side,
                lowered,
                values,
                golden.name,
                spec,
                (*location, position, index),
                goldens,
            )
        _run(part.branch.whole, values)


def _run(graph: LoweredGraph, values: dict[str, Any]) -> None:
    """Add the outputs of `graph` on these values to them, by name."""
    outputs = graph.run(*(values[name] for name in graph.inputs))
    values.update(zip(graph.outputs, outputs, strict=True))


def _record_side(
    side: PartitionedConversion,
    lowered: LoweredGraph,
    values: Mapping[str, Any],
    name: str,
    spec: ModelSpec,
    location: Location,
    goldens: Recorded,
) -> None:
    inputs = {input_name: values[input_name] for input_name in lowered.inputs}
    try:
        results = lowered.run(*inputs.values())
    except Exception:
        return
    outputs = dict(zip(lowered.outputs, results, strict=True))
    golden = segment_goldens.golden_of(name, inputs, outputs)
    chain = segment_goldens.record(side.partition, [golden], spec)
    for number, engine_goldens in enumerate(chain):
        here = (*location, number)
        goldens[here] = (*goldens.get(here, ()), *engine_goldens)
    for here, inner in record(side, chain, spec, location).items():
        goldens[here] = (*goldens.get(here, ()), *inner)
