"""Cast the boundary tensors of an ensemble's torch steps to the dtypes of the engines.

Triton passes a tensor between two models only if both declare the same dtype. An engine declares
TensorRT's dtype, which for int64 is INT32 in some versions, and the torch segment computes in
int64.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from builder import lowering, triton
from builder.pipeline.artifacts import SplitModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from builder.manifest import TensorSpec
    from builder.partition import Segment
    from builder.triton import Golden


def at_boundaries(model: SplitModel) -> SplitModel:
    """The model with a cast in each torch segment whose boundary tensor has another dtype in an
    engine that Triton's TensorRT backend serves. The segment's specs and goldens get that dtype.
    """
    served = _served(model) if model.serve_as != "python" else {}
    if not served:
        return model
    segments = []
    segment_goldens = []
    pairs = zip(model.segments, model.segment_goldens, strict=True)
    for number, (segment, goldens) in enumerate(pairs):
        if not model.plans[number]:
            segment, goldens = _narrowed(segment, goldens, served)
        segments.append(segment)
        segment_goldens.append(goldens)
    partition = replace(model.partitioned.partition, segments=tuple(segments))
    partitioned = replace(model.partitioned, partition=partition)
    return replace(
        model, partitioned=partitioned, segment_goldens=tuple(segment_goldens)
    )


def _served(model: SplitModel) -> dict[str, str]:
    """By tensor, the dtype that an engine declares, if it differs from the module's."""
    dtypes_by_name: dict[str, str] = {}
    for segment, plan in zip(model.segments, model.plans, strict=True):
        if plan is None or plan.facts.get("flavor") != "tensorrt":
            continue
        engine = {
            fact["name"]: triton.dtypes.by_tensorrt(fact["dtype"]).name
            for side in ("inputs", "outputs")
            for fact in plan.facts[side]
        }
        dtypes_by_name.update(
            (name, engine[name])
            for name, spec in _tensors(segment)
            if spec is not None and name in engine and engine[name] != spec.dtype
        )
    return dtypes_by_name


def _tensors(segment: Segment) -> Iterable[tuple[str, TensorSpec | None]]:
    yield from zip(segment.inputs, segment.specs, strict=True)
    yield from zip(segment.outputs, segment.output_specs, strict=True)


def _narrowed(
    segment: Segment, goldens: tuple[Golden, ...], served: Mapping[str, str]
) -> tuple[Segment, tuple[Golden, ...]]:
    import torch

    changed = {
        name: spec for name, spec in _tensors(segment) if name in served and spec
    }
    if not changed:
        return segment, goldens
    inputs = {
        index: getattr(torch, changed[name].dtype)
        for index, name in enumerate(segment.inputs)
        if name in changed
    }
    outputs = {
        index: getattr(torch, served[name])
        for index, name in enumerate(segment.outputs)
        if name in changed
    }
    cast_segment = replace(
        segment,
        lowered=lowering.endpoints.cast(segment.lowered, inputs, outputs),
        specs=_specs(segment.inputs, segment.specs, served),
        output_specs=_specs(segment.outputs, segment.output_specs, served),
    )
    converted = partial(_converted, served=served)
    return cast_segment, tuple(golden.changed(converted) for golden in goldens)


def _specs(
    names: Iterable[str], specs: Iterable[TensorSpec | None], served: Mapping[str, str]
) -> tuple[TensorSpec | None, ...]:
    narrowed = []
    for name, spec in zip(names, specs, strict=True):
        if spec is not None and name in served:
            spec = replace(spec, dtype=served[name])
        narrowed.append(spec)
    return tuple(narrowed)


def _converted(
    arrays: Mapping[str, NDArray[Any]], served: Mapping[str, str]
) -> dict[str, NDArray[Any]]:
    """The arrays in the dtypes of the endpoint."""
    converted = dict(arrays)
    for name in converted.keys() & served.keys():
        converted[name] = converted[name].astype(
            triton.dtypes.by_name(served[name]).numpy
        )
    return converted
