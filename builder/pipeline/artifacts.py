"""The artifact of a model: one engine, or segments that one runtime runs (fused)."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from builder import lowering, triton
from builder.dtypes import name_of
from builder.errors import PublishError
from builder.manifest import ModelSpec, Profile, TensorSpec
from builder.pipeline import batching_safety, branches
from builder.pipeline.fallback import PartitionedConversion
from builder.reachable import reachable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from builder.conversion import Conversion
    from builder.engine import Plan
    from builder.graph_types import Node
    from builder.lowering import LoweredGraph
    from builder.partition import Partition, Segment
    from builder.triton import IO, BranchFiles, Golden, ModelArtifact, SegmentFiles


@dataclass(frozen=True)
class SplitModel:
    """A model in segments: `plans` and `segment_goldens` have one entry for each segment; the plan
    is None where torch runs the segment.
    """

    spec: ModelSpec
    partitioned: PartitionedConversion
    plans: tuple[Plan | None, ...]
    goldens: tuple[Golden, ...]
    segment_goldens: tuple[tuple[Golden, ...], ...]
    branch_plans: Mapping[branches.Location, Plan] = field(default_factory=dict)
    """Plans of engines inside branches, only in the fused layout."""
    serve_as: str = "auto"
    torch_steps: str = "auto"
    """The backend of an ensemble's torch steps: "pytorch" is Triton's PyTorch backend, "python" the
    Python runtime. "auto" uses the PyTorch backend if it can serve the step, Triton's TensorRT
    backend serves the engines, and the server of this machine does not lack it.
    """

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.partitioned.partition.segments

    @property
    def built(self) -> list[Plan]:
        """All plans, with those inside branches last."""
        return [plan for plan in (*self.plans, *self.branch_plans.values()) if plan]


def segment_files(
    segment: Segment, conversion: Conversion | None, plan: Plan | None
) -> SegmentFiles:
    lowered = saved(segment.lowered)
    if conversion is None or plan is None:
        return triton.SegmentFiles(
            segment.kind, segment.inputs, segment.outputs, lowered
        )
    dtypes = {str(spec.name): spec.dtype for spec in conversion.inputs}
    outputs = zip(conversion.outputs, conversion.output_dtypes, strict=True)
    dtypes |= {name: name_of(dtype) for name, dtype in outputs}
    return triton.SegmentFiles(
        segment.kind,
        segment.inputs,
        segment.outputs,
        lowered,
        plan.data,
        plan.facts,
        dtypes,
        tuple(_ranges(conversion.inputs, profile) for profile in conversion.profiles),
    )


def _ranges(specs: Sequence[TensorSpec], profile: Profile) -> dict[str, Any]:
    return {
        str(spec.name): (spec.at(profile, 0), spec.at(profile, 1), spec.at(profile, 2))
        for spec in specs
    }


def row_dependence(model: SplitModel, segments: Sequence[Segment]) -> str | None:
    """Why requests must not be batched, unless the manifest explicitly requests it."""
    if model.spec.batching.enabled:
        return None
    for segment in segments:
        decision = batching_safety.decision_on_data(segment.lowered.graph)
        if decision:
            return decision
    for segment in segments:
        threshold = _threshold(segment)
        if threshold:
            return threshold
    return None


def _threshold(segment: Segment) -> str | None:
    graph = segment.lowered.graph
    read = zip(graph.inputs(), segment.specs, strict=True)
    return batching_safety.one_for_all(
        graph,
        [
            value.debugName()
            for value, spec in read
            if spec and spec.shape in ((), (1,))
        ],
    )


def named(model: SplitModel) -> ModelSpec:
    """The spec with a name for each input, as in the segments."""
    names = model.partitioned.partition.inputs
    return replace(
        model.spec,
        inputs=tuple(
            replace(tensor_spec, name=name)
            for tensor_spec, name in zip(model.spec.inputs, names, strict=True)
        ),
    )


def inputs_of(model: SplitModel) -> tuple[IO, ...]:
    return tuple(
        endpoint(spec, str(spec.name), model.goldens) for spec in named(model).inputs
    )


def outputs_of(model: SplitModel) -> tuple[IO, ...]:
    partition = model.partitioned.partition
    flags = (*partition.flags.values(), *partition.too_long.values())
    hidden = {*flags, *unknown_outputs(model)}
    known: Mapping[str, TensorSpec | None] = {
        name: spec
        for segment in model.segments
        for name, spec in zip(segment.outputs, segment.output_specs, strict=True)
    }
    return tuple(
        endpoint(
            known[name],
            name,
            model.goldens,
            _at_same_position(partition, name),
            partial(_source_of_rank, partition.whole, position),
        )
        for position, name in enumerate(partition.outputs)
        if name not in hidden
    )


def _source_of_rank(whole: LoweredGraph | None, position: int) -> str | None:
    """The source line of the nearest operator that may decide the rank of an output: a squeeze,
    else a branch, else the operator that returns the output.
    """
    if whole is None:
        return None

    def sources(node: Node) -> Iterator[Node]:
        returned = (value for block in node.blocks() for value in block.outputs())
        return (value.node() for value in (*node.inputs(), *returned))

    nodes = list(reachable([list(whole.graph.outputs())[position].node()], sources))
    first = {node.kind(): node for node in reversed(nodes)}
    node = first.get("aten::squeeze") or first.get("prim::If") or nodes[0]
    return lowering.source_location(node)


def _at_same_position(partition: Partition, name: str) -> Collection[str]:
    """The output and those that have the same position in the other elements of its list."""
    group = partition.groups.get(name)
    if group is None:
        return [name]
    return [
        name for name, other_group in partition.groups.items() if other_group == group
    ]


def unknown_outputs(model: SplitModel) -> dict[str, str]:
    """Each output that is None in every golden, with its flag: its type and shape are not known, so
    no endpoint can have it. Elements of a list have those of the list's other elements. Raises
    PublishError where the model has no other output.
    """
    partition = model.partitioned.partition
    flags = partition.flags
    recorded = {name for golden in model.goldens for name in golden.outputs}
    unknown = {
        name: flag
        for name, flag in flags.items()
        if recorded.isdisjoint(_at_same_position(partition, name))
    }
    hidden = len(unknown) + len(flags) + len(partition.too_long)
    if unknown and hidden == len(partition.outputs):
        raise PublishError(
            f"every output is None in every golden: {', '.join(unknown)}",
            fix="add inputs for which they are tensors (manifest: goldens: FILE.npz)",
        )
    return unknown


def endpoint(
    spec: TensorSpec | None,
    name: str,
    goldens: Sequence[Golden],
    same_type: Collection[str] = (),
    rank_source: Callable[[], str | None] = lambda: None,
) -> IO:
    """The tensor as inferred; where its shape depends on data, of the goldens' rank and with every
    axis dynamic. `same_type` are the outputs of a list that have the same dtype and rank, itself
    included, `rank_source` returns the source line that decides the rank.
    """
    if spec is not None and len(same_type) <= 1:
        shape = tuple(-1 if isinstance(axis, str) else axis for axis in spec.shape)
        return triton.IO(name, spec.dtype, shape)
    recorded = _recorded([name], goldens) or _recorded(same_type, goldens)
    ranks = {array.ndim for array in recorded}
    known = triton.dtypes.by_numpy(recorded[0].dtype)
    if len(ranks) != 1 or known is None:
        where = rank_source() if len(ranks) > 1 else None
        raise _without_fixed_type(name, recorded, len(same_type) > 1, where)
    return triton.IO(name, known.name, (-1,) * ranks.pop())


def _without_fixed_type(
    name: str, recorded: Sequence[NDArray[Any]], in_list: bool, where: str | None
) -> PublishError:
    """The error of an output whose recorded tensors have several ranks, or a dtype that Triton
    lacks.
    """
    fix = "return a tensor of one rank and of a dtype that Triton supports"
    if in_list:
        fix += ", or reduce max_lengths to the longest list of the goldens"
    ranks = sorted({array.ndim for array in recorded})
    return PublishError(
        f"output {name!r} has no fixed rank or dtype: {recorded[0].dtype}, ranks {ranks}",
        where=where,
        fix=fix,
    )


def _recorded(names: Collection[str], goldens: Sequence[Golden]) -> list[NDArray[Any]]:
    """The goldens' tensors of these names."""
    sides = [side for golden in goldens for side in (golden.inputs, golden.outputs)]
    return [side[name] for side in sides for name in names if name in side]


def of_conversion(
    spec: ModelSpec,
    conversion: Conversion,
    plan: Plan,
    goldens: tuple[Golden, ...],
    serve_as: str,
) -> ModelArtifact:
    """The artifact of one conversion and its plan, with the tensors of the network."""
    graph = conversion.lowered.graph
    return triton.ModelArtifact(
        spec=replace(spec, inputs=conversion.inputs),
        inputs=endpoints(conversion.network, "input"),
        outputs=endpoints(conversion.network, "output"),
        profiles=conversion.profiles,
        plan=plan.data,
        plan_facts=plan.facts,
        lowered=saved(conversion.lowered),
        goldens=goldens,
        serve_as=serve_as,
        row_dependence=batching_safety.decision_on_data(graph)
        or batching_safety.one_for_all(graph),
    )


def endpoints(network: Any, side: str) -> tuple[IO, ...]:
    """The network's inputs or outputs (`side`: "input", "output") as the repository's tensors."""
    from builder.conversion import dtypes

    count = getattr(network, f"num_{side}s")
    get = getattr(network, f"get_{side}")
    tensors = [get(index) for index in range(count)]
    return tuple(
        triton.IO(
            tensor.name, name_of(dtypes.from_trt(tensor.dtype)), tuple(tensor.shape)
        )
        for tensor in tensors
    )


def saved(lowered: LoweredGraph) -> bytes:
    """The bytes of the TorchScript file of a LoweredGraph."""
    buffer = io.BytesIO()
    lowered.save(buffer)
    return buffer.getvalue()


def fused(model: SplitModel) -> ModelArtifact:
    """The artifact of the fused layout: one model whose runtime runs all segments in one
    process.
    """
    facts = next((plan.facts for plan in model.built), {})
    flags = model.partitioned.partition.flags
    unknown = unknown_outputs(model)
    return triton.ModelArtifact(
        spec=named(model),
        inputs=inputs_of(model),
        outputs=outputs_of(model),
        profiles=model.spec.profiles,
        plan=None,
        plan_facts={
            key: facts[key]
            for key in ("flavor", "tensorrt", "compute_capabilities")
            if key in facts
        },
        lowered=b"",
        goldens=model.goldens,
        serve_as=model.serve_as,
        segments=_files_of_segments(model.partitioned, model.plans, model.branch_plans),
        flags={name: flag for name, flag in flags.items() if name not in unknown},
        unknown=unknown,
        too_long=model.partitioned.partition.too_long,
        row_dependence=row_dependence(model, model.segments),
    )


def _files_of_segments(
    partitioned: PartitionedConversion,
    plans: Sequence[Plan | None],
    branch_plans: Mapping[branches.Location, Plan],
    location: branches.Location = (),
) -> tuple[SegmentFiles, ...]:
    """Every segment's files; for torch segments with engines inside branches, those of their
    parts.
    """
    segments = zip(
        partitioned.partition.segments, partitioned.conversions, plans, strict=True
    )
    all_files = []
    for number, (segment, conversion, plan) in enumerate(segments):
        parts = partitioned.parts.get(number, ())
        part_files = _parts(parts, branch_plans, (*location, number))
        files = segment_files(segment, conversion, plan)
        all_files.append(replace(files, parts=part_files))
    return tuple(all_files)


def _parts(
    parts: Sequence[LoweredGraph | branches.SplitBranch],
    plans: Mapping[branches.Location, Plan],
    location: branches.Location,
) -> tuple[SegmentFiles | BranchFiles, ...]:
    files: list[SegmentFiles | BranchFiles] = []
    for number, part in enumerate(parts):
        if not isinstance(part, branches.SplitBranch):
            files.append(
                triton.SegmentFiles("torch", part.inputs, part.outputs, saved(part))
            )
            continue
        condition = part.branch.condition
        read = tuple(part.branch.values)
        yes, no = (
            _side(side, plans, (*location, number, index))
            for index, side in enumerate(part.sides)
        )
        outputs = part.branch.outputs
        files.append(
            triton.BranchFiles(
                saved(condition), condition.inputs, read, outputs, (yes, no)
            )
        )
    return tuple(files)


def _side(
    partitioned: PartitionedConversion,
    plans: Mapping[branches.Location, Plan],
    location: branches.Location,
) -> tuple[SegmentFiles, ...]:
    side_plans = [
        plans.get((*location, number)) for number in range(len(partitioned.conversions))
    ]
    return _files_of_segments(partitioned, side_plans, plans, location)
