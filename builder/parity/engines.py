"""Run goldens on the plans of a repository on this machine's GPU, without a server."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import files
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from builder.engine import flavor, gpu
from builder.errors import EngineError, EnvironmentProblem, UsageError
from builder.parity import served
from builder.parity.arrays import to_numpy, to_torch
from builder.parity.comparison import compare, widened
from builder.parity.results import GoldenResult, ModelParity, milliseconds, percentiles
from builder.parity.served import PublishedModel
from builder.progress import Progress
from builder.store import published
from builder.triton import AMPERE_PLUS, Golden

REPEAT = 5
Tensors = Mapping[str, torch.Tensor]
Run = Callable[[Tensors, "int | None"], Tensors]
"""Inputs by name and the profile to use (None: any that includes their shapes); outputs by name, on
any device.
"""


@dataclass(frozen=True)
class Planned:
    """A model with plans. `plan` is its only plan, None for a partitioned model."""

    folder: Path
    facts: Mapping[str, Any]
    plan: Path | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Opened:
    """A callable that runs a model. `kind` is "plan", or "torch" or "plan+torch" for a partitioned
    model, with the reason `why`.
    """

    run: Run
    kind: str
    why: str


Open = Callable[[ExitStack, Planned], Opened]
"""Opens a model. Resources to close are pushed on the stack."""


def verify_engines(
    repository: Path,
    models: Sequence[str] | None = None,
    *,
    repeat: int = REPEAT,
    open_plan: Open | None = None,
    progress: Progress | None = None,
) -> list[ModelParity]:
    """Run every golden of `models`, or of all models, on the model's plans, each in the profile
    that it was recorded for.

    Models without a plan, and ensembles (whose steps are models), are left out. Raises
    EnvironmentProblem if there is no GPU or the plans' TensorRT is not installed, UsageError for an
    unknown model, or if no model has a plan. `open_plan` replaces the GPU in tests.
    """
    planned_or_none = []
    for name in served.chosen(repository, models):
        with published.shaped(repository / name):
            planned_or_none.append(_planned(repository / name))
    planned = [model for model in planned_or_none if model is not None]
    if not planned:
        raise UsageError(
            f"no model of {repository} has a plan",
            fix="use `trt-build verify --serve`, which also verifies models that torch runs",
        )
    if open_plan is None:
        _select_flavor(planned)
    results = []
    for number, model in enumerate(planned, 1):
        if progress:
            progress(model.folder.name, f"verify ({number} of {len(planned)})")
        results.append(_model(model, repeat, open_plan or on_gpu))
    return results


def _select_flavor(planned: Sequence[Planned]) -> None:
    """Raise EnvironmentProblem if this machine cannot run the plans; else select their flavor."""
    if not flavor.has_gpu():
        raise EnvironmentProblem(
            "an engine requires a GPU; no CUDA device found",
            fix=(
                "use `trt-build verify REPOSITORY --serve`: the server uses torch; see `trt-build "
                "doctor`"
            ),
        )
    flavors = sorted({str(published.flavor_of(model.facts)) for model in planned})
    if len(flavors) > 1:
        raise UsageError(
            f"the plans are of {' and '.join(flavors)}, and one process can only use one",
            fix="select a model with --only NAME",
        )
    flavor.select(flavors[0])


def _planned(folder: Path) -> Planned | None:
    """The model with its plans; None without plans or without plan.json."""
    version = published.current_folder(folder)
    try:
        facts = json.loads((version / "plan.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not any(version.glob("*.plan")):
        return None
    names = [
        tuple(tensor["name"] for tensor in facts["serving"][side])
        for side in ("inputs", "outputs")
    ]
    if "segments" in facts:
        return Planned(folder, facts, None, *names)
    plan, plan_facts = _plan_for_this_gpu(folder, facts)
    return Planned(folder, plan_facts, plan, *names)


def _plan_for_this_gpu(
    folder: Path, facts: Mapping[str, Any]
) -> tuple[Path, Mapping[str, Any]]:
    """The plan and its facts; for a merged model, those of this GPU's compute capability."""
    version = published.current_folder(folder)
    device = gpu.current()
    if not facts.get("plans") or device is None:
        return version / "model.plan", facts
    capability = ".".join(map(str, device.capability))
    config = served.read(folder).config
    files = {AMPERE_PLUS: config.default_model_filename, **config.cc_model_filenames}
    for key in (capability, AMPERE_PLUS):
        if key in facts["plans"]:
            return version / files[key], facts["plans"][key]
    raise EnvironmentProblem(
        f"model {folder.name!r} has no plan for {capability}, the compute capability of"
        " this GPU"
    )


def on_gpu(stack: ExitStack, model: Planned) -> Opened:
    """Run a plan with Polygraphy's runner. CUDA tensors are not copied, and outputs stay in the
    runner's buffers.
    """
    from builder.engine import Engine

    if model.plan is None:
        return by_runtime(stack, model)
    engine = stack.enter_context(Engine(model.plan.read_bytes()))

    def run(tensors: Tensors, profile: int | None) -> Tensors:
        outputs = engine.infer([tensors[name] for name in engine.inputs], profile)
        return dict(zip(engine.outputs, outputs, strict=True))

    return Opened(
        run,
        "plan",
        f"the plan of {published.flavor_of(model.facts)} {model.facts.get('tensorrt')} alone",
    )


def by_runtime(stack: ExitStack, model: Planned) -> Opened:
    """Run the segments of a model by the serving code, in this process."""
    runtime = _runtime()
    version = published.current_folder(model.folder)
    for name in model.facts.get("libraries", ()):
        runtime.load_library(version / "libraries" / name)
    instance = {"model_instance_kind": "GPU", "model_instance_device_id": "0"}
    executor = runtime.SegmentsExecutor(version, model.facts, instance)

    def run(tensors: Tensors, profile: int | None) -> Tensors:
        with torch.cuda.stream(executor.stream) if executor.stream else nullcontext():
            outputs = executor.run([tensors[name] for name in model.inputs])
        pairs = zip(model.outputs, outputs, strict=True)
        return {name: tensor for name, tensor in pairs if tensor is not None}

    return Opened(run, executor.kind, f"{executor.summary}: {executor.why}")


@lru_cache(maxsize=1)
def _runtime() -> Any:
    """The Python runtime that is published with every model, outside Triton."""
    triton = ModuleType("triton_python_backend_utils")
    triton.Logger = SimpleNamespace(log_info=_silent, log_warn=_silent)  # type: ignore[attr-defined]
    path = files("builder") / "templates" / "runtime" / "model.py"
    spec = importlib.util.spec_from_file_location("trt_build_model", str(path))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[triton.__name__] = triton
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[triton.__name__]
    return module


def _silent(message: str) -> None:
    """Discard the runtime's log messages, which are in the result."""


def _model(planned: Planned, repeat: int, open_plan: Open) -> ModelParity:
    model = served.read(planned.folder)
    results: list[GoldenResult] = []
    problems = tuple(served.damaged(model))
    if not model.goldens:
        problems = ("it has no goldens to verify", *problems)
    opened = None
    with ExitStack() as stack:
        try:
            if not problems:
                opened = open_plan(stack, planned)
                results = [
                    _run_golden(model, opened.run, golden, repeat)
                    for golden in model.goldens
                ]
        except EngineError as refusal:
            problems = (refusal.message,)
    kind, why = (opened.kind, opened.why) if opened else (None, None)
    if kind == "torch":
        problems = (*problems, f"no plan of it ran: {why}")
    return ModelParity(
        model.name,
        str(model.sidecar["serve_as"]),
        kind,
        "cuda:0",
        why,
        tuple(results),
        problems,
    )


def _run_golden(
    model: PublishedModel, run: Run, golden: Golden, repeat: int
) -> GoldenResult:
    profile = _profile(golden)
    try:
        inputs = {
            name: _placed(to_torch(array)) for name, array in golden.inputs.items()
        }
        outputs = {
            name: to_numpy(tensor) for name, tensor in run(inputs, profile).items()
        }
        times = [milliseconds(partial(run, inputs, profile)) for _ in range(repeat)]
    except EngineError as failure:
        return GoldenResult(golden.name, "engine", None, failure.message)
    comparison = compare(
        widened(outputs, golden), golden, model.tolerance, precision=model.precision
    )
    return GoldenResult(
        golden.name, "engine", comparison, None, *percentiles(times), tuple(times)
    )


def _profile(golden: Golden) -> int | None:
    """The profile that the golden was recorded for: `p1-min`."""
    match = re.fullmatch(r"p(\d+)-\w+", golden.name)
    return int(match[1]) if match else None


def _placed(tensor: torch.Tensor) -> torch.Tensor:
    if torch.cuda.is_available():
        return tensor.cuda()
    return tensor
