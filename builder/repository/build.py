"""build_repository: the way through the house, one model after another, each published only when its numbers hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import EnvironmentProblem, TrtBuildError
from builder.manifest import load as load_manifests
from builder.manifest.spec import ModelSpec, TensorSpec
from builder.repository import hops

if TYPE_CHECKING:
    from builder.engine import BuildOptions
    from builder.lowering import LoweredGraph
    from builder.repository.cut import Pieces
    from builder.triton import Golden

PHASES = ("load", "goldens", "lower", "convert", "reference", "build", "publish")
"""What `progress` is told, in order."""

Progress = Callable[[str, str], None]
"""(model, phase) as each phase begins."""


@dataclass
class ModelResult:
    """What became of one model: `error` tells why where `ok` is False; `seconds` by phase."""

    name: str
    ok: bool = False
    error: TrtBuildError | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    layers: int = 0
    plan_bytes: int = 0
    path: Path | None = None
    warnings: tuple[str, ...] = ()
    layout: str = "single"
    """"single": one engine; "fused" or "ensemble": in the pieces of `segments`, for the reason `layout_reason`."""
    layout_reason: str = ""
    segments: tuple[str, ...] = ()


def build_repository(
    models: Path | str,
    out: Path | str,
    *,
    serve_as: str = "auto",
    layout: str = "auto",
    flavour: str = "auto",
    only: Sequence[str] = (),
    inputs: Sequence[TensorSpec] = (),
    sample: Path | str | None = None,
    precision: str | None = None,
    options: BuildOptions | None = None,
    progress: Progress | None = None,
) -> list[ModelResult]:
    """Build every model of the folder `models` into the Triton repository `out`; the results, one a model.

    `inputs` (or the arrays of the npz `sample`) stand in for a manifest that is missing; `precision` overrides the
    manifests'. A model that TensorRT runs only in part is served in pieces: `layout` "fused" in one process,
    "ensemble" as a Triton ensemble, "auto" as is cheaper. A model that fails does not stop the others, and leaves what
    the repository had of it. Beside `out` a `.env` names the container that fits the plans. Raises ManifestError and
    UsageError before anything is built, and EnvironmentProblem where this machine cannot build at all.
    """
    from builder.engine import flavour as flavours
    from builder.triton import write_env

    sample = Path(sample) if sample is not None else None
    specs = load_manifests(Path(models), only=only, inputs=inputs, sample=sample, precision=precision)
    flavours.select(flavour)
    results = [_one(spec, Path(out), serve_as, layout, options, progress or _silent) for spec in specs]
    if any(result.ok for result in results):
        write_env(Path(out))
    return results


def _silent(model: str, phase: str) -> None:
    pass


def _one(spec: ModelSpec, out: Path, serve_as: str, layout: str, options: Any, progress: Progress) -> ModelResult:
    """One model through all phases; its own errors end in the result, the machine's go through."""
    result = ModelResult(spec.name)
    try:
        _Build(spec, result, progress).run(out, serve_as, layout, options)
        result.ok = True
    except EnvironmentProblem:
        raise
    except TrtBuildError as error:
        result.error = error
    return result


class _Build:
    """The phases of one model; each is timed and told to `progress`."""

    def __init__(self, spec: ModelSpec, result: ModelResult, progress: Progress) -> None:
        self.spec, self.result, self.progress = spec, result, progress

    def run(self, out: Path, serve_as: str, layout: str, options: Any) -> None:
        from builder import lowering, parity, torchscript
        from builder.repository import cut, single

        spec = self.spec
        with self.phase("load"):
            module = torchscript.load(spec.path, spec.module)
        with self.phase("lower"):
            lowered = lowering.lower(module, unroll_limit=spec.unroll_limit, fallback_modules=spec.fallback.modules)
        names = spec.outputs or lowered.outputs
        with self.phase("goldens"):
            goldens = parity.record(module, spec, names)
        with self.phase("convert"):
            found = cut.convert_or_cut(lowered, spec, names)
        self.result.warnings = (*_unknown_modules(spec, lowered), *found.warnings)
        if isinstance(found, cut.Pieces):
            self._in_pieces(found, goldens, out, serve_as, layout, options)
            return
        with self.phase("reference"):
            hops.check_reference(found, goldens, spec)
        plan = self._build(found, options)
        self._publish(single.artifact(spec, found, plan, goldens, serve_as), out)
        self.result.layers, self.result.plan_bytes = plan.facts["layers"], len(plan.data)

    def _in_pieces(
        self, pieces: Pieces, goldens: tuple[Golden, ...], out: Path, serve_as: str, layout: str, options: Any
    ) -> None:
        from builder.repository import layouts

        with self.phase("reference"):
            recorded = hops.record_hops(pieces.partition, goldens, self.spec)
            for number, conversion in enumerate(pieces.conversions):
                if conversion is not None:
                    hops.check_reference(conversion, recorded[number], self.spec, of=f"segment {number}")
        plans = tuple(None if c is None else self._build(c, options) for c in pieces.conversions)
        cut = layouts.Cut(self.spec, pieces, plans, goldens, tuple(recorded))
        artifact, reason = layouts.artifact(cut, layout, serve_as)
        self._publish(artifact, out)
        self.result.layers, self.result.plan_bytes = layouts.layers(cut), layouts.plan_bytes(cut)
        self.result.layout = "ensemble" if hasattr(artifact, "steps") else "fused"
        self.result.segments = tuple(segment.kind for segment in pieces.partition.segments)
        self.result.layout_reason = reason

    def _build(self, conversion: Any, options: Any) -> Any:
        from builder import engine

        with self.phase("build"):
            return engine.build(conversion, options or engine.BuildOptions())

    def _publish(self, artifact: Any, out: Path) -> None:
        from builder import triton

        publish = triton.publish_ensemble if isinstance(artifact, triton.EnsembleArtifact) else triton.publish
        with self.phase("publish"):
            self.result.path = publish(artifact, out)

    @contextmanager
    def phase(self, name: str) -> Any:
        self.progress(self.spec.name, name)
        started = time.monotonic()
        yield
        before = self.result.seconds.get(name, 0.0)
        self.result.seconds[name] = round(before + time.monotonic() - started, 3)


def _unknown_modules(spec: ModelSpec, lowered: LoweredGraph) -> Iterator[str]:
    """A name under fallback.modules that marks nothing is most likely misspelt."""
    from builder.repository import cut

    if spec.fallback.modules and not cut.kept_nodes(lowered):
        yield f"fallback.modules names no module of this model: {', '.join(spec.fallback.modules)}"
