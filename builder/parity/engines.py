"""Goldens asked of the plans of a repository themselves, on this machine's GPU: no server between."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from builder.errors import EngineError, EnvironmentProblem, UsageError
from builder.parity import served
from builder.parity.arrays import to_numpy, to_torch
from builder.parity.comparison import Comparison, compare, widened
from builder.parity.results import GoldenResult, ModelParity, percentiles
from builder.parity.served import PublishedModel
from builder.triton.artifact import Golden
from builder.triton.layout import VERSION

REPEAT = 5
Tensors = Mapping[str, torch.Tensor]
Run = Callable[[Tensors, "int | None"], Tensors]
"""Inputs by name and the profile to use (None: any that holds them); outputs by name, wherever they lie."""


@dataclass(frozen=True)
class Piece:
    """A plan, or a graph that torch runs between plans; tensors by the names that the whole model has."""

    path: Path
    facts: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def is_plan(self) -> bool:
        """Whether TensorRT runs it."""
        return self.path.suffix == ".plan"


Open = Callable[[ExitStack, Piece], Run]
"""Makes a plan ready to run; what must be closed goes on the stack."""


def verify_engines(
    repository: Path, models: Sequence[str] | None = None, *, repeat: int = REPEAT, open_plan: Open | None = None
) -> list[ModelParity]:
    """Run every golden of `models`, or of all, on the model's own plans: each in the profile that it was recorded for.

    Pieces of a model that torch runs are run on the CPU. Models without a plan, and ensembles (whose steps are models),
    are left out. Raises EnvironmentProblem where no GPU answers or the plans' TensorRT is not installed, UsageError for
    an unknown model. `open_plan` stands in for the GPU in tests.
    """
    chosen = [(name, _pieces(repository / name)) for name in served.chosen(repository, models)]
    with_plan = [(name, pieces) for name, pieces in chosen if any(piece.is_plan for piece in pieces)]
    if not with_plan:
        raise UsageError(f"no model of {repository} has a plan", fix="`trt-build verify --serve` asks torch too")
    if open_plan is None:
        _settle([piece for _, pieces in with_plan for piece in pieces])
    return [_model(repository / name, pieces, repeat, open_plan or on_gpu) for name, pieces in with_plan]


def _settle(pieces: Sequence[Piece]) -> None:
    """Raise EnvironmentProblem where nothing here can run the plans; else take their flavour."""
    from builder.engine import flavour

    if not flavour.gpu_answers():
        raise EnvironmentProblem(
            "an engine runs on a GPU only, and none answers here",
            fix="`trt-build verify REPOSITORY --serve` asks a server, which answers with torch; see `trt-build doctor`",
        )
    flavours = sorted({str(piece.facts.get("flavour")) for piece in pieces if piece.is_plan})
    if len(flavours) > 1:
        raise UsageError(f"the plans are of {' and '.join(flavours)}, one process uses one", fix="--only NAME")
    flavour.select(flavours[0])


def _pieces(folder: Path) -> list[Piece]:
    """What runs the model, in order; empty where there is no plan.json of ours."""
    try:
        facts = json.loads((folder / VERSION / "plan.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    if "segments" in facts:
        return [_segment(folder / VERSION, number, said) for number, said in enumerate(facts["segments"])]
    path, own = _plan_for_this_gpu(folder, facts)
    names = [tuple(t["name"] for t in facts["serving"][side]) for side in ("inputs", "outputs")]
    return [Piece(path, own, *names)] if path.is_file() else []


def _plan_for_this_gpu(folder: Path, facts: Mapping[str, Any]) -> tuple[Path, Mapping[str, Any]]:
    """The plan and its facts; of a merged model the ones of this GPU's compute capability."""
    from builder.engine import gpu

    device = gpu.current()
    if not facts.get("plans") or device is None:
        return folder / VERSION / "model.plan", facts
    capability = ".".join(map(str, device.capability))
    file = served.read(folder).config.cc_model_filenames.get(capability)
    if file is None:
        raise EnvironmentProblem(f"model {folder.name!r} has no plan for {capability}, which this GPU is")
    return folder / VERSION / file, facts["plans"][capability]


def _segment(folder: Path, number: int, said: Mapping[str, Any]) -> Piece:
    plan = folder / f"segment_{number}.plan"
    names = [tuple(t["name"] for t in said[side]) for side in ("inputs", "outputs")]
    return Piece(plan if plan.is_file() else plan.with_suffix(".pt"), said.get("plan", {}), *names)


def on_gpu(stack: ExitStack, piece: Piece) -> Run:
    """The plan through Polygraphy's runner: CUDA tensors are read where they are, outputs stay in its buffers."""
    from builder.engine.run import Engine

    engine = stack.enter_context(Engine(piece.path.read_bytes()))

    def run(tensors: Tensors, profile: int | None) -> Tensors:
        made = engine.infer([tensors[name] for name in engine.inputs], profile)
        return dict(zip(engine.outputs, made, strict=True))

    return run


def _on_cpu(piece: Piece) -> Run:
    module = torch.jit.load(str(piece.path), map_location="cpu").eval()  # type: ignore[no-untyped-call]

    def run(tensors: Tensors, profile: int | None) -> Tensors:
        with torch.inference_mode():
            made = module(*(tensors[name].cpu() for name in piece.inputs))
        made = [made] if isinstance(made, torch.Tensor) else made
        return dict(zip(piece.outputs, made, strict=True))

    return run


def _model(folder: Path, pieces: Sequence[Piece], repeat: int, open_plan: Open) -> ModelParity:
    model = served.read(folder)
    kinds = "+".join(sorted({"plan" if piece.is_plan else "torch" for piece in pieces}))
    facts = next(piece.facts for piece in pieces if piece.is_plan)
    why = f"the plan of {facts.get('flavour')} {facts.get('tensorrt')} alone"
    results: list[GoldenResult] = []
    problems: tuple[str, ...] = () if model.goldens else ("it has no goldens to verify",)
    with ExitStack() as stack:
        try:
            runs = [open_plan(stack, piece) if piece.is_plan else _on_cpu(piece) for piece in pieces]
            results = [_ask(model, runs, golden, repeat) for golden in model.goldens]
        except EngineError as refusal:
            problems = (refusal.message,)
    return ModelParity(model.name, str(model.sidecar["serve_as"]), kinds, "cuda:0", why, tuple(results), problems)


def _ask(model: PublishedModel, runs: Sequence[Run], golden: Golden, repeat: int) -> GoldenResult:
    profile = _profile(golden) if len(runs) == 1 else None
    try:
        inputs = {name: _placed(to_torch(array)) for name, array in golden.inputs.items()}
        answer = {name: to_numpy(tensor) for name, tensor in _chain(runs, inputs, profile).items()}
        times = [_timed(runs, inputs, profile) for _ in range(repeat)]
    except EngineError as failure:
        return GoldenResult(golden.name, "engine", None, failure.message)
    return GoldenResult(golden.name, "engine", _compare(model, answer, golden), None, *percentiles(times))


def _profile(golden: Golden) -> int | None:
    """The profile that the golden was recorded for: `p1-min`."""
    match = re.fullmatch(r"p(\d+)-\w+", golden.name)
    return int(match[1]) if match else None


def _placed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cuda() if torch.cuda.is_available() else tensor


def _chain(runs: Sequence[Run], inputs: Tensors, profile: int | None) -> Tensors:
    """Every value that the pieces made, in order."""
    values, made = dict(inputs), {}
    for run in runs:
        outputs = {name: tensor.clone() if len(runs) > 1 else tensor for name, tensor in run(values, profile).items()}
        values.update(outputs)
        made.update(outputs)
    return made


def _timed(runs: Sequence[Run], inputs: Tensors, profile: int | None) -> float:
    begin = time.perf_counter()
    _chain(runs, inputs, profile)
    return (time.perf_counter() - begin) * 1e3


def _compare(model: PublishedModel, answer: Mapping[str, Any], golden: Golden) -> Comparison:
    """Only the model's own outputs: pieces make others too."""
    own = {name: array for name, array in answer.items() if name in golden.outputs}
    return compare(widened(own, golden), golden, model.tolerance, precision=model.precision)
