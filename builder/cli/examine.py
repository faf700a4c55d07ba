"""The report of `trt-build check` on one model: the stages of the pipeline before publication."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from builder import lowering, pipeline, store, triton, unforeseen
from builder.engine import needs_no_gpu
from builder.errors import EnvironmentProblem, UnsupportedOperators
from builder.pipeline import Order, stages
from builder.progress import Progress

if TYPE_CHECKING:
    from builder.lowering import LoweredGraph
    from builder.manifest import ModelSpec
    from builder.partition import Partition
    from builder.store import Plans

Report = dict[str, Any]
"""JSON-able."""


def examine(
    order: Order, progress: Progress, *, paranoid: bool = False, build: bool = False
) -> Report:
    """The report on one model. `error` has the reason if it ended early. Raises only errors that
    affect every model (EnvironmentProblem, BrokenPipeError).

    With `build`, every network is compiled if TensorRT needs no GPU for it (`compiled`), because
    only its builder can show that a network is accepted. The plans are kept in the order's store.
    """
    spec = order.spec
    report: Report = {
        "name": spec.name,
        "file": str(spec.path),
        "error": None,
        "config": None,
    }
    clock = pipeline.Clock(spec.name, progress, lambda stage: _add(report, stage))
    try:
        pipeline.select_environment(order)
        plans = _plans(order) if build and needs_no_gpu() else None
        report["compiled"] = plans is not None
        compile = None
        if plans is not None:
            compile = pipeline.compiler(order.options, clock, plans)
        _add_artifact(report, pipeline.check(order, clock, compile, paranoid=paranoid))
        if plans:
            report["warnings"] += plans.warnings
    except (EnvironmentProblem, BrokenPipeError):
        raise
    except Exception as error:
        report["error"] = unforeseen.as_defect(error).as_dict()
        if isinstance(error, UnsupportedOperators):
            report["operators"]["unsupported"] = [
                vars(operator) for operator in error.operators
            ]
    return report


def _plans(order: Order) -> Plans:
    """The compiled plans, which are kept in the order's store."""
    return store.Plans(store.Store(order.store) if order.store else None)


def _add(report: Report, stage: stages.Stage) -> None:
    if isinstance(stage, stages.Lowered):
        report["passes"] = len(stage.graph.trace)
        report["operators"] = {
            "used": dict(sorted(used(stage.graph).items())),
            "unsupported": [],
        }
    elif isinstance(stage, stages.Prepared):
        if stage.quantized:
            report["quantized"] = pipeline.reduced_precision.as_data(stage.quantized)
        if stage.source.spec.state:
            report["state"] = _states(stage.source.spec)
    elif isinstance(stage, stages.Converted):
        _add_conversion(report, stage)


def used(graph: LoweredGraph) -> Counter[str]:
    """How often each operator occurs in the graph, inner blocks included."""
    kinds = (node.kind() for node in lowering.ir.walk(graph.graph))
    return Counter(kind for kind in kinds if kind.startswith("aten::"))


def _states(spec: ModelSpec) -> list[Report]:
    shapes = {tensor.name: list(tensor.shape) for tensor in spec.inputs}
    return [
        {
            "input": state.input,
            "output": state.output,
            "shape": shapes[state.input],
            "kept": spec.sequences.mode,
        }
        for state in spec.state
    ]


def _add_conversion(report: Report, converted: stages.Converted) -> None:
    """The number of layers, and of a partitioned model its segments."""
    report["warnings"] = list(converted.warnings)
    partitioned = converted.partitioned
    outside_branches = [part for part in converted.networks if len(part.location) < 2]
    report["layers"] = sum(
        part.conversion.network.num_layers for part in outside_branches
    )
    if partitioned is None:
        return
    refused = partitioned.partition.refused
    report["operators"]["unsupported"] = [vars(operator) for operator in refused]
    report["fallback"] = {
        "summary": partitioned.partition.summary(),
        "segments": _segments(partitioned.partition),
    }


def _segments(partition: Partition) -> list[Report]:
    return [
        {
            "runs_in": part.kind,
            "nodes": part.nodes,
            "flops": part.flops,
            "crossing_bytes": part.crossing_bytes,
            "inputs": part.inputs,
            "outputs": part.outputs,
        }
        for part in partition.segments
    ]


def _add_artifact(report: Report, checked: stages.Checked) -> None:
    """The configs that would be written: the model's, and those of the steps of an ensemble."""
    report["warnings"] = list(checked.warnings)
    if "fallback" in report:
        report["fallback"] |= {
            "layout": checked.layout,
            "reason": checked.layout_reason,
        }
    artifact = checked.artifact
    if isinstance(artifact, triton.EnsembleArtifact):
        steps = {step.spec.name: triton.config(step) for step in artifact.steps}
        report["config"] = _text(triton.ensemble.ensemble_config(artifact, steps))
        report["steps"] = {name: _text(message) for name, message in steps.items()}
    else:
        report["config"] = _text(triton.config(artifact))


def _text(message: Any) -> str:
    """The config as text, without the hashes of files that are not built."""
    for unknown in ("plan_sha256", "lowered_sha256"):
        message.parameters.pop(f"trt_build.{unknown}", None)
    return str(triton.config_text(message))
