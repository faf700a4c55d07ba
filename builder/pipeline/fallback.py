"""Convert a model to one engine if possible, else partition it into segments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from builder import lowering, partition
from builder.errors import ConversionError, UnsupportedOperators
from builder.manifest import ModelSpec, Profile, TensorSpec
from builder.pipeline import branches
from builder.printable import counted

if TYPE_CHECKING:
    from builder.conversion import Conversion
    from builder.errors import UnsupportedOperator
    from builder.lowering import LoweredGraph
    from builder.partition import Partition, Segment

ROUNDS = 4
"""Number of new partitions after a segment failed to convert. After that, torch runs the whole
segment.
"""
TENSORRT = "tensorrt"


@dataclass(frozen=True)
class KeptInTorch:
    """Nodes that must stay in torch according to earlier attempts: indices of top-level nodes of
    the graph, each with a reason. `branches` False: no engines inside branches.
    """

    nodes: frozenset[int] = frozenset()
    reasons: tuple[str, ...] = ()
    branches: bool = True


@dataclass(frozen=True)
class PartitionedConversion:
    """A partition with the conversion of each segment, None for torch segments.

    `warnings` name the nodes in torch. `parts` are those of torch segments with engines inside
    branches, by segment number. The fused layout runs them instead of the segment's graph.
    """

    partition: Partition
    conversions: tuple[Conversion | None, ...]
    warnings: tuple[str, ...]
    parts: Mapping[int, tuple[LoweredGraph | branches.SplitBranch, ...]] = field(
        default_factory=dict
    )
    operators: tuple[UnsupportedOperator, ...] = ()
    """The nodes in torch that have their own reason, with source location and fix."""


def to_network(
    lowered: LoweredGraph,
    spec: ModelSpec,
    names: Sequence[str] | None,
    inputs: Sequence[TensorSpec] | None = None,
    profiles: Sequence[Profile] | None = None,
) -> Conversion:
    """The TensorRT network in the spec's precision, with the output names `names`. A segment passes
    its `inputs` and `profiles`. Raises UnsupportedOperators and ConversionError.
    """
    from builder import conversion

    return conversion.convert(
        lowered,
        spec.inputs if inputs is None else inputs,
        precision=spec.precision,
        keep_fp32=spec.keep_fp32,
        profiles=spec.profiles if profiles is None else profiles,
        output_names=names,
    )


def convert_or_partition(
    lowered: LoweredGraph, spec: ModelSpec, names: Sequence[str], earlier: KeptInTorch
) -> Conversion | PartitionedConversion:
    """One conversion of the whole graph if TensorRT supports all of it and the manifest keeps
    nothing in torch, else the segments. `names` are the names of the outputs, `earlier` the result
    of earlier attempts. Raises UnsupportedOperators or ConversionError with
    `fallback.require_full`, and UsageError for a key of `fallback.ranges` that matches no tensor.
    """
    lowered = lowered.named(names)
    fallback = spec.fallback
    if fallback.require_full and lowered.flags:
        raise _optional_output_error(lowered)
    if lowered.as_written:
        return _as_written(lowered, spec)
    nodes_in_torch = kept_nodes(lowered)
    unreadable = tuple(_unreadable_inputs(lowered, spec))
    keeps_nodes = bool(fallback.ops or nodes_in_torch or unreadable or earlier.reasons)
    if lowered.flags:
        defects = earlier.reasons
    elif fallback.require_full or not keeps_nodes:
        whole = _convert_whole(lowered, spec)
        if not isinstance(whole, tuple):
            _check_ranges(lowered, spec)
            return whole
        defects = whole
    else:
        defects = (*earlier.reasons, *unreadable)
    in_torch = _with_list_reads(earlier, lowered)
    return _Partitioner(
        lowered, spec, nodes_in_torch, list(defects), earlier=in_torch
    ).run()


def _convert_whole(
    lowered: LoweredGraph, spec: ModelSpec
) -> Conversion | tuple[str, ...]:
    """One conversion of the whole graph; else the defects of trt-build that prevent it, which are
    none where TensorRT lacks an operator. Raises the error with `fallback.require_full`.
    """
    try:
        return to_network(lowered, spec, lowered.outputs)
    except (UnsupportedOperators, ConversionError) as error:
        if spec.fallback.require_full:
            raise
        if isinstance(error, UnsupportedOperators):
            return ()
        return (str(error),)


def _check_ranges(lowered: LoweredGraph, spec: ModelSpec) -> None:
    """Raise UsageError for a key of `fallback.ranges` that matches no tensor. Partitioning does the
    same for a model in segments.
    """
    if spec.fallback.ranges:
        partition.infer_shapes(
            lowered, spec.inputs, spec.profiles, ranges=spec.fallback.ranges
        )


def _with_list_reads(in_torch: KeptInTorch, lowered: LoweredGraph) -> KeptInTorch:
    """Also keep the nodes of `_list_reads` in torch."""
    reads = _list_reads(lowered)
    # each branch that reads an element would contain the loop that makes the list
    engines_inside = in_torch.branches and not reads
    return replace(in_torch, nodes=in_torch.nodes | reads, branches=engines_inside)


def _list_reads(lowered: LoweredGraph) -> frozenset[int]:
    """The top-level nodes that read the elements of lists whose length is not known: TensorRT has
    no such lists.
    """
    values = zip(lowered.graph.outputs(), lowered.outputs, strict=True)
    read = {value.debugName() for value, name in values if name in lowered.groups}
    nodes = enumerate(lowered.graph.nodes())
    return frozenset(
        index
        for index, node in nodes
        if read & {value.debugName() for value in node.outputs()}
    )


def _optional_output_error(lowered: LoweredGraph) -> ConversionError:
    """The error of `fallback.require_full` for a model with an output that may be None."""
    name, where = next(iter(lowered.decided_at.items()))
    return ConversionError(
        f"output {name!r} may be None, and an engine always returns all of its outputs",
        where=where,
        fix="return a tensor on every path, or remove fallback.require_full",
    )


def _as_written(lowered: LoweredGraph, spec: ModelSpec) -> PartitionedConversion:
    parts = partition.split(lowered, spec.inputs, spec.profiles, spec.fallback)
    return PartitionedConversion(
        parts, (None,), (f"served by PyTorch only: {lowered.as_written}",)
    )


def _unreadable_inputs(lowered: LoweredGraph, spec: ModelSpec) -> Iterator[str]:
    """Warnings for inputs that no engine can read."""
    from builder import conversion

    for name, tensor in zip(lowered.inputs, spec.inputs, strict=False):
        if reason := conversion.unreadable(tensor):
            yield (
                f"input {tensor.name or name}: {reason}, so the nodes that read it stay in torch"
            )


def kept_nodes(lowered: LoweredGraph) -> set[int]:
    """The indices of the top-level nodes of modules that the manifest keeps in torch."""
    nodes = enumerate(lowered.graph.nodes())
    return {
        index
        for index, node in nodes
        if any(lowering.ir.in_fallback(inner) for inner in _with_nested_nodes(node))
    }


def _with_nested_nodes(node: Any) -> Iterator[Any]:
    yield node
    for block in lowering.ir.blocks_of(node):
        yield from lowering.ir.walk(block)


class _Partitioner:
    """Partitions the graph, converts every TensorRT segment, and partitions again where one
    refuses after all.
    """

    def __init__(
        self,
        lowered: LoweredGraph,
        spec: ModelSpec,
        nodes_in_torch: set[int],
        defects: list[str],
        *,
        is_branch: bool = False,
        earlier: KeptInTorch = KeptInTorch(),
    ) -> None:
        self.lowered = lowered
        self.spec = spec
        self.defects = defects
        self.is_branch = is_branch
        self.by_manifest = bool(nodes_in_torch)
        self.in_torch = nodes_in_torch | earlier.nodes
        self.branches = earlier.branches
        self.late: list[UnsupportedOperator] = []

    def run(self) -> Conversion | PartitionedConversion:
        spec = self.spec
        inferred = partition.Inferred.of(
            self.lowered, spec.inputs, spec.profiles, spec.fallback.ranges
        )
        for rounds_left in reversed(range(ROUNDS + 1)):
            parts = inferred.split(spec.fallback, in_torch=self.in_torch)
            partitioned = self._convert_all(parts, whole=rounds_left < 2)
            if partitioned is not None:
                return partitioned
        parts = inferred.split(replace(spec.fallback, ops=("*",)))
        return self._partitioned(parts, [None] * len(parts.segments))

    def _convert_all(
        self, parts: Partition, *, whole: bool
    ) -> Conversion | PartitionedConversion | None:
        """The conversions, or None if a segment fails to convert. Its node, or with `whole` the
        whole segment, is then kept in torch.
        """
        conversions = [
            self._try(segment, whole) if segment.kind == TENSORRT else None
            for segment in parts.segments
        ]
        refused = any(
            conversion is None and segment.kind == TENSORRT
            for conversion, segment in zip(conversions, parts.segments, strict=True)
        )
        if refused:
            return None
        if (
            len(parts.segments) == 1
            and conversions[0] is not None
            and not self.is_branch
        ):
            return self._one_engine() or self._partitioned(parts, conversions)
        return self._partitioned(parts, conversions)

    def _one_engine(self) -> Conversion | None:
        """The conversion of the whole graph, with the model's inputs in the model's order."""
        if self.lowered.flags or any(_unreadable_inputs(self.lowered, self.spec)):
            return None
        try:
            return to_network(self.lowered, self.spec, self.lowered.outputs)
        except (UnsupportedOperators, ConversionError):
            return None

    def _try(self, segment: Segment, whole: bool) -> Conversion | None:
        specs = [spec for spec in segment.specs if spec is not None]
        try:
            return to_network(
                segment.lowered, self.spec, segment.outputs, specs, segment.profiles
            )
        except UnsupportedOperators as refusal:
            self.late += refusal.operators
            node_names = {operator.node for operator in refusal.operators}
        except ConversionError as defect:
            self.defects.append(str(defect))
            node_names = {(defect.where or "").partition(" at ")[0].removeprefix("%")}
        indices = _node_indices(segment, node_names) - self.in_torch
        if whole or not indices:
            indices = set(segment.indices)
        self.in_torch |= indices
        return None

    def _partitioned(
        self, parts: Partition, conversions: Sequence[Conversion | None]
    ) -> PartitionedConversion:
        inner = self._with_engines_inside(parts)
        converted = [
            text
            for conversion in conversions
            if conversion is not None
            for text in conversion.warnings
        ]
        refused = self._refused(parts)
        reported = [
            operator
            for operator in refused
            if operator.reason != partition.READS_OTHERS
        ]
        reasons = tuple(operator.reason for operator in reported)
        defects = dict.fromkeys([*self.defects, *parts.warnings])
        warnings = [
            *_torch_warnings(parts, reported),
            *_branch_warnings(inner),
            *(text for text in defects if not text.startswith(reasons)),
            *_followers(parts, len(refused) - len(reported)),
            *converted,
        ]
        return PartitionedConversion(
            parts, tuple(conversions), tuple(warnings), inner, tuple(reported)
        )

    def _refused(self, parts: Partition) -> list[UnsupportedOperator]:
        """The operators in torch, including those that a conversion refused later."""
        refused = [
            operator
            for operator in parts.refused
            if self.by_manifest or operator.reason != partition.BY_MODULE
        ]
        return refused + self.late

    def _with_engines_inside(
        self, parts: Partition
    ) -> dict[int, tuple[LoweredGraph | branches.SplitBranch, ...]]:
        """By number, the parts of each torch segment that has branches with engines inside."""
        parts_by_number: dict[int, tuple[LoweredGraph | branches.SplitBranch, ...]] = {}
        if not self.branches:
            return parts_by_number
        for number, segment in enumerate(parts.segments):
            if segment.kind != TENSORRT:
                inside = branches.parts(segment, self.spec, _partition_branch)
                if inside:
                    parts_by_number[number] = inside
        return parts_by_number


def _partition_branch(lowered: LoweredGraph, spec: ModelSpec) -> PartitionedConversion:
    """The partition of a branch's graph, one segment if the whole branch converts."""
    partitioned = _Partitioner(
        lowered, spec, kept_nodes(lowered), [], is_branch=True
    ).run()
    assert isinstance(partitioned, PartitionedConversion)
    return partitioned


def _branch_warnings(
    inner: Mapping[int, Sequence[LoweredGraph | branches.SplitBranch]],
) -> Iterator[str]:
    for number, inner_parts in inner.items():
        splits = [
            part for part in inner_parts if isinstance(part, branches.SplitBranch)
        ]
        sides = [side for part in splits for side in part.sides]
        count = sum(
            conversion is not None for side in sides for conversion in side.conversions
        )
        yield (
            f"in torch segment {number}: {counted(len(splits), 'branch', 'branches')} on data with"
            f" {counted(count, 'engine')} inside, which the fused layout runs if that branch is"
            " taken"
        )


def _node_indices(segment: Segment, names: set[str]) -> set[int]:
    """The indices in the model's graph of the top-level nodes that compute or contain these
    values.
    """
    nodes = zip(segment.indices, segment.lowered.graph.nodes(), strict=True)
    return {index for index, node in nodes if names & computed_names(node)}


def computed_names(node: Any) -> set[str]:
    """The names of the values that the node and the nodes in its blocks compute."""
    return {
        value.debugName()
        for inner in _with_nested_nodes(node)
        for value in inner.outputs()
    }


_REWRITE = "rewrite that line with supported operators to let TensorRT run it (docs/operators.md)"


def _torch_warnings(
    parts: Partition, reported: Sequence[UnsupportedOperator]
) -> Iterator[str]:
    """Warnings that name the nodes in torch and the fix."""
    if all(segment.kind != TENSORRT for segment in parts.segments):
        yield "served by PyTorch only: no TensorRT segment outweighs its transfer cost"
    else:
        yield f"served in segments: {parts.summary()}"
    groups: dict[tuple[str, str, str], list[str]] = {}
    for refused in reported:
        key = (refused.schema.partition("(")[0], refused.reason, refused.fix)
        groups.setdefault(key, []).append(refused.where)
    for (operator, reason, fix), locations in groups.items():
        more = ""
        if len(locations) > 1:
            more = f" and {len(locations) - 1} more"
        line = ""
        if locations[0] != "graph":
            line = f" at {locations[0].removesuffix(':')}"
        change = ""
        if "manifest" not in reason:
            change = f"; {_REWRITE if 'fallback' in fix else fix}"
        yield f"in torch: {operator}{line}{more}: {reason}{change}"


def _followers(parts: Partition, followers: int) -> Iterator[str]:
    """Warnings with the number of operators that stay in torch because of others, and the fix."""
    if followers:
        some, they = f"{followers} more operators stay", "they read"
        if followers == 1:
            some, they = "1 more operator stays", "it reads"
        yield (
            f"{some} in torch: {they} results of operators in torch that are not tensors or "
            "have data-dependent shapes or dtypes that TensorRT lacks"
        )
    if followers and parts.open:
        sources = ", ".join(
            f"{tensor} (of {operator})" for operator, tensor in parts.open
        )
        yield (
            f"sizes depend on data from {sources} on; declare their bounds to allow engines after "
            f"that: `fallback: {{ranges: {{{parts.open[0][1]}: {{min: 1, opt: 100, max:"
            " 1000}}}`"
        )
