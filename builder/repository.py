"""build_repository: the way through the house, one model after another, each published only when its numbers hold."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import EnvironmentProblem, ParityError, TrtBuildError
from builder.manifest import load as load_manifests
from builder.manifest.spec import ModelSpec, TensorSpec

if TYPE_CHECKING:
    from builder.conversion import Conversion
    from builder.engine import BuildOptions
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


def build_repository(
    models: Path | str,
    out: Path | str,
    *,
    serve_as: str = "auto",
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
    manifests'. A model that fails does not stop the others, and leaves what the repository had of it. Beside `out` a
    `.env` names the container that fits the plans. Raises ManifestError and UsageError before anything is built, and
    EnvironmentProblem where this machine cannot build at all.
    """
    from builder.engine import flavour as flavours
    from builder.triton import write_env

    sample = Path(sample) if sample is not None else None
    specs = load_manifests(Path(models), only=only, inputs=inputs, sample=sample, precision=precision)
    flavours.select(flavour)
    results = [_one(spec, Path(out), serve_as, options, progress or _silent) for spec in specs]
    if any(result.ok for result in results):
        write_env(Path(out))
    return results


def _silent(model: str, phase: str) -> None:
    pass


def _one(spec: ModelSpec, out: Path, serve_as: str, options: Any, progress: Progress) -> ModelResult:
    """One model through all phases; its own errors end in the result, the machine's go through."""
    result = ModelResult(spec.name)
    try:
        _Build(spec, result, progress).run(out, serve_as, options)
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

    def run(self, out: Path, serve_as: str, options: Any) -> None:
        from builder import conversion, engine, lowering, parity, torchscript, triton

        spec = self.spec
        with self.phase("load"):
            module = torchscript.load(spec.path, spec.module)
        with self.phase("lower"):
            lowered = lowering.lower(module, unroll_limit=spec.unroll_limit)
        names = spec.outputs or lowered.outputs
        with self.phase("goldens"):
            goldens = parity.record(module, spec, names)
        with self.phase("convert"):
            converted = conversion.convert(
                lowered, spec.inputs, precision=spec.precision, profiles=spec.profiles, output_names=names
            )
        with self.phase("reference"):
            check_reference(converted, goldens, spec)
        with self.phase("build"):
            plan = engine.build(converted, options or engine.BuildOptions())
        with self.phase("publish"):
            artifact = triton.ModelArtifact(
                spec=replace(spec, inputs=converted.inputs),
                inputs=_endpoints(converted.network, "input"),
                outputs=_endpoints(converted.network, "output"),
                profiles=converted.profiles,
                plan=plan.data,
                plan_facts=plan.facts,
                lowered=_saved(lowered),
                goldens=goldens,
                serve_as=serve_as,
            )
            self.result.path = triton.publish(artifact, out)
        self.result.layers, self.result.plan_bytes = plan.facts["layers"], len(plan.data)
        self.result.warnings = converted.warnings

    @contextmanager
    def phase(self, name: str) -> Any:
        self.progress(self.spec.name, name)
        started = time.monotonic()
        yield
        self.result.seconds[name] = round(time.monotonic() - started, 3)


def check_reference(conversion: Conversion, goldens: Sequence[Golden], spec: ModelSpec) -> None:
    """Raise ParityError where the network, evaluated on the CPU, differs from a golden: names where it begins."""
    from builder import parity, reference
    from builder.parity.recording import to_numpy, to_torch

    for golden in goldens:
        tensors = [to_torch(golden.inputs[str(s.name)]) for s in conversion.inputs]
        answers = reference.run(conversion, tensors)
        answer = {n: _widened(to_numpy(t), golden, n) for n, t in zip(conversion.outputs, answers, strict=True)}
        comparison = parity.compare(answer, golden, spec.tolerance, precision=spec.precision)
        if not comparison.passed:
            raise ParityError(
                f"golden {golden.name}: the network differs from the module: {'; '.join(comparison.problems)}",
                where=parity.first_difference(conversion, tensors),
                fix="this is a defect of a converter: please report it; `fallback` keeps the operator in torch",
            )


NARROWED = {("float64", "float32"), ("int64", "int32")}
"""(module's dtype, network's dtype) where TensorRT has no dtype of the module's: the endpoint widens it again."""


def _widened(answer: Any, golden: Golden, name: str) -> Any:
    """The array in the golden's dtype where the network could only hold a narrower one."""
    wanted = golden.outputs[name].dtype if name in golden.outputs else answer.dtype
    return answer.astype(wanted) if (str(wanted), str(answer.dtype)) in NARROWED else answer


def _endpoints(network: Any, side: str) -> tuple[Any, ...]:
    """The network's inputs or outputs as the repository describes them."""
    from builder.conversion import dtypes
    from builder.triton import IO

    count, get = (getattr(network, f"num_{side}s"), getattr(network, f"get_{side}"))
    tensors = [get(i) for i in range(count)]
    return tuple(IO(t.name, str(dtypes.from_trt(t.dtype)).removeprefix("torch."), tuple(t.shape)) for t in tensors)


def _saved(lowered: Any) -> bytes:
    buffer = io.BytesIO()
    lowered.save(buffer)
    return buffer.getvalue()
