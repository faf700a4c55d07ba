"""The steps after TensorRT or trt-build fails on a model: fewer nodes in TensorRT, then none.

1. The nodes that the error names, else the branches and loops of the failed network, else the whole
   network stay in torch, and the model is converted again. A network of 8 bits that TensorRT does
   not build is first built in fp16.
2. Torch serves the original module, with only the passes that flatten its interface.

Each step is a warning with the node, its source line and the fix. With `fallback.require_full`
nothing is retried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from builder import lowering, parity, precisions, unforeseen
from builder.engine import flavor
from builder.errors import (
    EngineError,
    EnvironmentProblem,
    ModelFileError,
    ParityError,
    PublishError,
    TrtBuildError,
    UnboundedListError,
    UsageError,
)
from builder.manifest import ModelSpec
from builder.pipeline import faster, stages
from builder.pipeline.fallback import KeptInTorch, computed_names
from builder.pipeline.order import Ended

if TYPE_CHECKING:
    from builder.engine import ITensor
    from builder.graph_types import Node
    from builder.pipeline.stages import Converted, Lowered, Network, Recorded

ATTEMPTS = 4
"""Maximum number of repeated conversions with fewer nodes in TensorRT."""
FINAL = (EnvironmentProblem, UsageError, ModelFileError, PublishError, BrokenPipeError)
"""Errors that cannot be avoided by running more of the model in torch."""

Result = TypeVar("Result")


def lower(
    loaded: stages.Loaded, *, keep_text: bool = False, paranoid: bool = False
) -> Lowered:
    """The lowered module. If lowering fails, the graph of the original module, for torch only. With
    `paranoid` the failure of a pass is raised.
    """
    try:
        return stages.lower(loaded, keep_text=keep_text, paranoid=paranoid)
    except Exception as error:
        if paranoid:
            raise
        try:
            return stages.lower_as_written(loaded, _failure(error, loaded.spec))
        except UnboundedListError as unbounded:
            raise _measured(unbounded, loaded) from error


def _measured(error: UnboundedListError, loaded: stages.Loaded) -> UnboundedListError:
    """The error, with the lengths that drawn inputs give."""
    lengths = parity.list_lengths(loaded.module, loaded.spec, error.name)
    if lengths:
        error.fix = (
            f"write its largest length in the manifest: max_lengths: {{{error.name}:"
            f" {max(*lengths, 1)}}} or more; drawn inputs give {min(lengths)} to {max(lengths)}"
            " elements"
        )
    return error


def first_success(
    recorded: Recorded, attempt: Callable[[Recorded, KeptInTorch], Result]
) -> Result:
    """The result of the first successful `attempt`, with fewer nodes in TensorRT each time. Raises
    the first error if the original module also fails, or nothing may be retried.
    """
    in_torch = KeptInTorch()
    error = None
    for _ in range(ATTEMPTS):
        try:
            return attempt(recorded, in_torch)
        except stages.NetworkFailure as failure:
            failure.error = _located(failure, in_torch)
            error = error or _failure(failure.error, recorded.lowered.spec)
            if _fails_in_8_bits(failure, in_torch):
                recorded = _in_half(recorded, error)
                continue
            wider = _with_more_in_torch(failure, in_torch)
            if wider == in_torch:
                break
            in_torch = wider
        except Exception as failure:
            error = error or _failure(failure, recorded.lowered.spec)
            break
    assert error is not None
    if recorded.lowered.graph.as_written:
        raise error
    try:
        return attempt(_original(recorded, error), KeptInTorch())
    except Exception as failure:
        if isinstance(failure, FINAL):
            raise
        raise error from failure


def _fails_in_8_bits(failure: stages.NetworkFailure, in_torch: KeptInTorch) -> bool:
    """Whether TensorRT did not build a network of 8 bits, for no node that could stay in torch."""
    quantized = failure.converted.prepared.spec.precision in precisions.QUANTIZED
    return (
        quantized
        and isinstance(failure.error, EngineError)
        and not _culprits(failure, in_torch)
    )


def _in_half(recorded: Recorded, error: TrtBuildError) -> Recorded:
    """The same model in fp16, with a warning."""
    warning = f"built in fp16 instead of {recorded.lowered.spec.precision}: {_error_text(error)}"
    return replace(faster.in_half(recorded), warnings=(*recorded.warnings, warning))


def by_torch(
    recorded: Recorded, ended: Ended, attempt: Callable[[Recorded, KeptInTorch], Result]
) -> Result:
    """The result of `attempt` for the original module, after a process that built it ended."""
    error = EngineError(ended.message, fix=ended.fix)
    return attempt(_original(recorded, error), KeptInTorch())


def _original(recorded: Recorded, error: TrtBuildError) -> Recorded:
    """The original module for torch only, without quantization."""
    source = recorded.lowered
    lowered = stages.lower_as_written(stages.Loaded(source.spec, source.module), error)
    precision = (
        source.spec.precision if source.spec.precision in precisions.FULL else "fp32"
    )
    known = dict(zip(source.graph.results, source.outputs, strict=True))
    names = source.outputs  # by position: results may have the same name
    if lowered.graph.results != source.graph.results:
        names = tuple(known.get(name, name) for name in lowered.graph.results)
    spec = replace(source.spec, precision=precision, outputs=names)
    return replace(recorded, lowered=replace(lowered, spec=spec))


def _failure(error: Exception, spec: ModelSpec) -> TrtBuildError:
    """The error as a TrtBuildError. Raises the error itself if the model must fail: torch would not
    help, or the manifest requires one engine or a precision within a tolerance.
    """
    if isinstance(error, FINAL):
        raise error
    defect = unforeseen.as_defect(error)
    rounded = isinstance(defect, ParityError) and spec.precision not in precisions.FULL
    if isinstance(defect, FINAL) or spec.fallback.require_full or rounded:
        raise error  # callers distinguish EnvironmentProblem from converted Python errors
    return defect


def _with_more_in_torch(
    failure: stages.NetworkFailure, in_torch: KeptInTorch
) -> KeptInTorch:
    """The additional nodes that must stay in torch after this failure."""
    part = failure.network
    converted = failure.converted
    error = unforeseen.as_defect(failure.error)
    nodes = dict(_nodes(part, converted))
    if len(part.location) > 1:
        reason = (
            f"engines inside branches stay in torch: {part.label}: {_error_text(error)}"
        )
        return replace(in_torch, branches=False, reasons=(*in_torch.reasons, reason))
    culprits = _culprits(failure, in_torch) or set(nodes)
    refused = [nodes[index] for index in sorted(culprits)]
    named = _described(refused).removesuffix(":")
    cause = _nested_branch(refused, error) or _error_text(error)
    reason = f"in torch: {named}: {cause}"
    is_located = isinstance(error, EngineError) and error.where
    if all(node.kind() == "prim::If" for node in refused) and not is_located:
        reason += (
            "; torch.where on both results instead of the branch lets TensorRT run it"
        )
    return replace(
        in_torch,
        nodes=in_torch.nodes | frozenset(culprits),
        reasons=(*in_torch.reasons, reason),
    )


def _is_of_rtx(error: Exception) -> bool:
    """Whether TensorRT for RTX failed. Its message names no node."""
    return (
        flavor.chosen() == "tensorrt-rtx"
        and isinstance(error, EngineError)
        and "Myelin" in error.message
    )


def _located(failure: stages.NetworkFailure, in_torch: KeptInTorch) -> Exception:
    """The error of the network. If the blocks of a branch give two shapes, which TensorRT for RTX
    often does not build, the error names the branch.
    """
    part = failure.network
    if not _is_of_rtx(failure.error) or len(part.location) > 1:
        return failure.error
    nodes = dict(_nodes(part, failure.converted))
    for node in (nodes[index] for index in sorted(_culprits(failure, in_torch))):
        for shapes in _two_shapes(node, part.conversion.tensors):
            return EngineError(
                "TensorRT for RTX could not build this branch, whose blocks give the shapes"
                f" {shapes[0]} and {shapes[1]} (-1: dynamic)",
                where=lowering.source_location(node),
                fix="give both results one shape, such as by padding",
            )
    return failure.error


def _two_shapes(
    node: Node, tensors: Mapping[str, ITensor]
) -> Iterator[list[list[int]]]:
    """The shapes of each result of a branch whose blocks give two."""
    blocks = lowering.ir.blocks_of(node) if node.kind() == "prim::If" else []
    for values in zip(*(block.outputs() for block in blocks), strict=True):
        known = [tensors.get(value.debugName()) for value in values]
        shapes = [list(tensor.shape) for tensor in known if tensor is not None]
        if len(shapes) == len(values) and shapes[0] != shapes[1]:
            yield shapes


def _nested_branch(nodes: list[Node], error: Exception) -> str | None:
    """The reason in plain words if TensorRT for RTX did not build a branch within these branches
    and loops.
    """
    if not _is_of_rtx(error):
        return None
    blocks = [block for node in nodes for block in lowering.ir.blocks_of(node)]
    inner = [node for block in blocks for node in lowering.ir.walk(block)]
    where = [
        lowering.source_location(node) for node in inner if node.kind() == "prim::If"
    ]
    if not where:
        return None
    branch = where[0].removesuffix(":")
    return f"TensorRT for RTX could not build it with the branch inside it, at {branch}"


def _culprits(failure: stages.NetworkFailure, in_torch: KeptInTorch) -> set[int]:
    """The nodes that the error names, else the branches and loops of the network, without those
    that already stay in torch.
    """
    nodes = dict(_nodes(failure.network, failure.converted))
    names = set(
        re.findall(r"%([\w.]+)", unforeseen.as_defect(failure.error).where or "")
    )
    by_name = {index for index, node in nodes.items() if names & computed_names(node)}
    by_name -= in_torch.nodes
    if by_name:
        return by_name
    control = {index for index, node in nodes.items() if list(node.blocks())}
    return control - in_torch.nodes


def _nodes(part: Network, converted: Converted) -> Iterator[tuple[int, Node]]:
    """The top-level nodes of the network, by their index in the model's graph."""
    partitioned = converted.partitioned
    if partitioned is None:
        yield from enumerate(converted.prepared.graph.graph.nodes())
        return
    segment = partitioned.partition.segments[part.location[0]]
    yield from zip(segment.indices, segment.lowered.graph.nodes(), strict=True)


def _described(nodes: list[Node]) -> str:
    """The first node, such as `prim::If at model.py:12: if x.size(1) > 5:`, and the number of
    others.
    """
    listed = [node for node in nodes if node.kind() != "prim::Constant"] or nodes
    more = ""
    if len(listed) > 1:
        more = f" and {len(listed) - 1} more nodes"
    return f"{listed[0].kind()} at {lowering.source_location(listed[0])}{more}"


def _error_text(error: TrtBuildError) -> str:
    """The message and the fix, in one line."""
    message = " ".join(error.message.split())
    if error.fix:
        return f"{message}; {error.fix}"
    return message
