"""The result of one model of a run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import engine, parity, pipeline
from builder.errors import TrtBuildError

if TYPE_CHECKING:
    from builder.lowering import PassRecord
    from builder.pipeline import Stage, stages


@dataclass
class ModelResult:
    """The result of one model. `error` is the reason if `ok` is False. `seconds` are by phase."""

    name: str
    ok: bool = False
    error: TrtBuildError | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    layers: int = 0
    plan_bytes: int = 0
    path: Path | None = None
    warnings: tuple[str, ...] = ()
    layout: str = "single"
    """"single": one engine; "fused" or "ensemble": the `segments`, for the reason `layout_reason`.
    """
    layout_reason: str = ""
    segments: tuple[str, ...] = ()
    state: str = "built"
    """"built"; "reused": published again with plans from the store; "unchanged": the published
    model is current; "edited": it is current except for manual edits.
    """
    quantized: dict[str, Any] | None = None
    """For an 8-bit precision: the `summary`, and the `layers` that could be quantized.

    Each layer has its name, whether it is quantized, its SQNR in dB, and the reason if it is not.
    """
    precision: str = ""
    parity: dict[str, Any] | None = None
    """For the published files, run by torch: the number of `answers` that were compared with the
    goldens, and their worst `absolute`, `relative` and `cosine`. `share` is the largest error
    relative to its tolerance.
    """
    plan_executed: bool | None = None
    """Whether the plans were run on the goldens before publication; None without a plan. If no plan
    can run, the networks were evaluated with torch instead.
    """
    lowering: tuple[dict[str, Any], ...] = ()
    """For each pass that changed the number of nodes: its `name`, the nodes `before` and `after`
    it, and its `seconds`.
    """
    operators: tuple[dict[str, Any], ...] = ()
    """The nodes in torch that have their own reason: the fields of UnsupportedOperator."""
    dtypes: tuple[dict[str, Any], ...] = ()
    """For each `network` the `runs` and `types` of engine.layer_dtypes."""
    because: str = ""
    """The reason for the build, such as "precision fp32 -> fp16"."""
    kept: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of the file with the checked artifact, if the order requests it."""

    def reached(self, stage: Stage) -> None:
        """Fill in the facts of a stage of the pipeline."""
        if isinstance(stage, pipeline.stages.Lowered):
            changed = (
                record
                for record in stage.graph.trace
                if record.nodes_before != record.nodes_after
            )
            self.lowering = tuple(map(_pass, changed))
        elif isinstance(stage, pipeline.stages.Prepared):
            self.precision = pipeline.stages.own_half(stage.source.spec).precision
            self.quantized = pipeline.reduced_precision.as_data(stage.quantized)
            self.warnings = stage.warnings
        elif isinstance(stage, pipeline.stages.Converted):
            self._converted(stage)
        elif isinstance(stage, pipeline.stages.Built):
            self.layers = sum(
                int(plan.facts["layers"]) for plan in stage.plans.values()
            )
            self.plan_bytes = sum(len(plan.data) for plan in stage.plans.values())
            self.plan_executed = (
                parity.plan_check.possible() if self.plan_bytes else None
            )
        elif isinstance(stage, pipeline.stages.Checked):
            self.layout = stage.layout
            self.layout_reason = stage.layout_reason
            self.parity = dict(stage.parity)
            self.warnings = stage.warnings

    def _converted(self, stage: stages.Converted) -> None:
        self.warnings = stage.warnings
        self.segments = ()
        self.operators = ()
        if partitioned := stage.partitioned:
            self.segments = tuple(part.kind for part in partitioned.partition.segments)
            self.operators = tuple(map(asdict, partitioned.operators))
        self.dtypes = tuple(
            {"network": part.label, **engine.layer_dtypes(part.conversion.network)}
            for part in stage.networks
        )


SHOWN = (
    "layers",
    "plan_bytes",
    "warnings",
    "layout",
    "layout_reason",
    "segments",
    "quantized",
    "precision",
    "parity",
    "plan_executed",
    "lowering",
    "operators",
    "dtypes",
)
"""The recorded fields of a result, so that an unchanged model is reported like a built one."""
RECORDED = (*SHOWN, "because", "state", "seconds")
"""The result in the trt-build.json of a built model. `seconds` exclude publication."""


def _pass(record: PassRecord) -> dict[str, Any]:
    return {
        "name": record.name,
        "before": record.nodes_before,
        "after": record.nodes_after,
        "seconds": round(record.seconds, 5),
    }
