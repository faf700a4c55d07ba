"""The cheapest precision that a model's tolerance allows, found by trying which layers must stay in
float32.

A trial is judged by the engine on a GPU where there is one, else by the network evaluated on the
CPU in the dtypes that are written into it. Every golden is compared; the one that failed last comes
first.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import pipeline, precisions, processes, unforeseen
from builder.errors import (
    EngineError,
    EnvironmentProblem,
    ParityError,
    TrtBuildError,
    UnsupportedOperators,
    UsageError,
)
from builder.manifest import ModelSpec, editing
from builder.pipeline import Order, Progress, layer_names, options_of, record, stages
from builder.repository import jobs as slots
from builder.repository.quickxplain import minimal
from builder.repository.settings import Settings, settled

if TYPE_CHECKING:
    import torch

    from builder.conversion import Conversion
    from builder.pipeline import Converted
    from builder.triton import Golden

    Run = Callable[..., Sequence[torch.Tensor]]

DEFAULT = "fp16"
"""What is tried where neither the manifest nor the command line asks for less than float32."""


@dataclass
class Search:
    """What was found for one model: `precision` and `keep_fp32` are to be written into its
    manifest. `layers` could have been kept, `problem` is what differs where none is, `judge`
    "engine" or "reference"; `error` tells why nothing was found.
    """

    name: str
    manifest: Path | None = None
    precision: str = ""
    keep_fp32: tuple[str, ...] = ()
    layers: int = 0
    judge: str = ""
    problem: str = ""
    trials: int = 0
    seconds: float = 0.0
    written: bool = False
    error: TrtBuildError | None = None
    tried: list[tuple[int, bool]] = field(default_factory=list)
    """For each trial how many layers were kept, and whether every golden passed."""


def wanted(spec: ModelSpec, precision: str | None) -> ModelSpec:
    """The spec as it is first tried. Raises UsageError where there is no manifest to write the
    outcome into.
    """
    if spec.manifest is None:
        raise UsageError(
            f"model {spec.name!r} has no manifest that the precision could be written into",
            fix=f"trt-build init {spec.path}",
        )
    return replace(
        spec,
        precision=precision
        or (spec.precision if spec.precision not in precisions.FULL else DEFAULT),
    )


def search_precision(
    models: Path | str,
    settings: Settings | None = None,
    *,
    out: Path | str = "model_repository",
    jobs: int = 0,
    isolate: bool = True,
    progress: Progress | None = None,
    **keywords: Any,
) -> list[Search]:
    """Find for every model of `models` the cheapest precision within its tolerance, and write it
    into its manifest.

    What is tried is the setting `precision`, else the manifest's, else fp16: first for every layer
    that the policy reduces, then with as few layers kept in float32 (`keep_fp32`) as let all
    goldens pass; fp32 where no layer can be reduced, or TensorRT would run less of the model than
    in fp32. Each is written as soon as it is found. A model that fails, with its `error`, does not
    stop the others. Settings and `keywords` are those of build_repository; nothing is published,
    but the command that reproduces a crash builds into `out`. Raises UsageError where a model has
    no manifest, or one that cannot be changed, EnvironmentProblem where it may not be, and what
    build_repository raises.
    """
    chosen = settled(settings, keywords)
    specs = [
        wanted(spec, chosen.precision) for spec in replace(chosen, precision=None).specs(models)
    ]
    for spec in specs:
        editing.check(_manifest(spec))
    asked = chosen.orders(specs, Path(out))
    return perform_all(asked, progress or (lambda model, phase: None), jobs, isolate)


def perform_all(
    asked: Sequence[Order], progress: Progress, jobs: int, isolate: bool
) -> list[Search]:
    """The searches of the orders, each in a process of its own unless told otherwise."""
    if not isolate:
        return [perform(order, progress) for order in asked]
    tasks = [
        processes.Task(
            partial(perform, order),
            progress,
            f"{order.reproduce} --search-precision",
            limits=slots.limits(order.spec.limits),
            sandbox=_sandbox(order),
        )
        for order in asked
    ]
    modules = slots.modules(order.spec.path for order in asked)
    answers = processes.run(
        tasks, jobs or slots.default_jobs(), slots.environments(), modules=modules
    )
    pairs = zip(asked, answers, strict=True)
    return [
        a if isinstance(a, Search) else Search(o.spec.name, o.spec.manifest, error=a)
        for o, a in pairs
    ]


def _sandbox(order: Order) -> processes.Sandbox:
    """A search also writes the manifest, by a new file beside it."""
    chosen = slots.sandbox(order)
    return replace(chosen, writable=(*chosen.writable, _manifest(order.spec).resolve().parent))


def _manifest(spec: ModelSpec) -> Path:
    assert spec.manifest is not None  # wanted() has seen to it
    return spec.manifest


def perform(order: Order, progress: Progress) -> Search:
    """Search for the model of the order, and write what was found: it took long, and others may yet
    be interrupted.

    Errors end in the result or are raised as in builder.repository.build.perform.
    """
    found = Search(order.spec.name, order.spec.manifest)
    started = time.monotonic()
    try:
        pipeline.select_environment(order)
        _Trials(order, found, progress).run()
        if found.manifest is not None:
            values = {"precision": found.precision, "keep_fp32": list(found.keep_fp32)}
            found.written = editing.edit(found.manifest, values)
    except (EnvironmentProblem, BrokenPipeError):
        raise
    except Exception as error:
        found.error = unforeseen.ours(error)
    found.seconds = round(time.monotonic() - started, 3)
    return found


class _Less(Exception):
    """In this precision TensorRT would run less of the model than in float32."""


class _Trials:
    """One model, loaded once and converted for every trial."""

    def __init__(self, order: Order, found: Search, progress: Progress) -> None:
        from builder.engine import flavour

        self.order, self.spec, self.found, self.progress = order, order.spec, found, progress
        recorded = record(order, pipeline.Clock(order.spec.name, lambda name, phase: None))
        # the smallest first
        goldens = sorted(
            recorded.goldens, key=lambda golden: sum(a.nbytes for a in golden.inputs.values())
        )
        self.recorded = replace(recorded, goldens=tuple(goldens))
        self.found.judge = (
            "engine" if flavour.name() == "tensorrt" and flavour.gpu_answers() else "reference"
        )
        self.known: dict[tuple[str, ...], str] = {}
        self._refused = False

    def run(self) -> None:
        """Fill in what was found. Raises ParityError where precision is not what keeps the model
        from passing.
        """
        found = self.found
        found.precision, found.problem = self.spec.precision, self.problem(())
        if not found.problem:
            found.keep_fp32 = self.spec.keep_fp32
            return
        if self._refused:
            found.precision, found.keep_fp32 = "fp32", self.spec.keep_fp32
            return
        layers = list(layer_names(n.conversion for n in self._convert(self.spec).networks))
        found.layers = len(layers)
        if still := self.problem(layers):
            raise ParityError(
                f"even with every layer in float32 the answers differ: {still}",
                where=str(self.spec.manifest),
                fix="`trt-build check --paranoid` tells where; precision is not what is wrong",
            )
        kept = minimal(layers, lambda names: not self.problem(names))
        if len(kept) == len(layers) or not self._reduces(kept):
            found.precision, found.keep_fp32 = "fp32", self.spec.keep_fp32
        else:
            found.keep_fp32 = (*self.spec.keep_fp32, *patterns(kept, layers))

    def _reduces(self, kept: Sequence[str]) -> bool:
        """Whether anything computes in less than float32 with these layers kept; what follows kept
        ones does not.
        """
        from builder.conversion import quantizes
        from builder.engine import capabilities, has_half

        if not capabilities.current().strongly_typed:
            return True  # TensorRT chooses
        made = [part.conversion for part in self._convert(self._keeping(kept)).networks]
        return any(has_half(c.network) or quantizes(c.lowered.graph) for c in made)

    def _keeping(self, kept: Sequence[str]) -> ModelSpec:
        return replace(self.spec, keep_fp32=(*self.spec.keep_fp32, *map(literal, kept)))

    def problem(self, kept: Sequence[str]) -> str:
        """What differs with these layers kept in float32; empty where every golden passes."""
        key = tuple(kept)
        if key not in self.known:
            self.progress(
                self.spec.name, f"trial {len(self.known) + 1}: {len(key)} layers kept in float32"
            )
            self.known[key] = self._tried(self._keeping(key))
            self.found.trials = len(self.known)
            self.found.tried.append((len(key), not self.known[key]))
        return self.known[key]

    def _tried(self, spec: ModelSpec) -> str:
        try:
            converted = self._as_much_as_in_float32(spec)
            for part in converted.networks:
                self._judge(part.conversion, part.goldens, converted.prepared.spec)
        except (ParityError, EngineError) as failure:
            return failure.message
        except _Less as failure:
            self._refused = True
            return str(failure)
        return ""

    def _as_much_as_in_float32(self, spec: ModelSpec) -> Converted:
        """The model, converted. Raises _Less where TensorRT would run more of it in float32."""
        try:
            made = self._convert(spec)
        except UnsupportedOperators as refusal:
            # raises the refusal again where float32 is refused too
            if self._nodes_in_float32:
                raise _Less(refusal.message) from refusal
            raise
        if made.pieces and _nodes(made) < self._nodes_in_float32:
            raise _Less(f"TensorRT runs less of the model in {spec.precision} than in fp32")
        return made

    @cached_property
    def _nodes_in_float32(self) -> int:
        return _nodes(self._convert(replace(self.spec, precision="fp32", keep_fp32=())))

    def _convert(self, spec: ModelSpec) -> Converted:
        """The model, converted as it would be for a build."""
        return stages.convert(stages.prepare(self.recorded, spec), self.order.layout)

    def _judge(self, conversion: Conversion, goldens: Sequence[Golden], spec: ModelSpec) -> None:
        """Raise ParityError, with the first golden that differs."""
        with self._runs(conversion) as run:
            for golden in goldens:
                problems = _differences(run, conversion, golden, spec)
                if problems:
                    self._ask_first(golden.name)
                    raise ParityError(f"golden {golden.name}: {'; '.join(problems)}")

    def _ask_first(self, name: str) -> None:
        """Compare this golden first from now on."""
        goldens = sorted(self.recorded.goldens, key=lambda golden: golden.name != name)
        self.recorded = replace(self.recorded, goldens=tuple(goldens))

    @contextmanager
    def _runs(self, conversion: Conversion) -> Iterator[Run]:
        """Runs the network: CPU tensors in and out, in the order of its inputs and outputs."""
        from builder import engine, reference
        from builder.engine import Engine

        if self.found.judge == "reference":
            yield lambda *tensors: reference.run(conversion, tensors)
        else:
            with Engine(engine.build(conversion, options_of(self.order)).data) as built:
                yield built


def _nodes(made: Converted) -> int:
    """How many top-level nodes of the model TensorRT would run."""
    whole = [n.conversion for n in made.networks if len(n.location) < 2]
    return sum(len(list(one.lowered.graph.nodes())) for one in whole)


def _differences(
    run: Run, conversion: Conversion, golden: Golden, spec: ModelSpec
) -> Sequence[str]:
    from builder import parity
    from builder.parity import to_numpy, to_torch, widened

    tensors = [to_torch(golden.inputs[str(s.name)]) for s in conversion.inputs]
    answer = widened(
        dict(zip(conversion.outputs, map(to_numpy, run(*tensors)), strict=True)), golden
    )
    return parity.compare(answer, golden, spec.tolerance, precision=spec.precision).problems


def literal(name: str) -> str:
    """The pattern that is this name alone."""
    return re.sub(r"([*?\[])", r"[\1]", name)


def patterns(kept: Sequence[str], layers: Sequence[str]) -> list[str]:
    """`kept` as patterns: `scope/*` where all layers of a scope are in it and they are several."""
    scopes: dict[str, list[str]] = {}
    for name in layers:
        scopes.setdefault(name.rpartition("/")[0], []).append(name)
    whole = {
        scope
        for scope, names in scopes.items()
        if scope and len(names) > 1 and set(names) <= set(kept)
    }
    said = (
        f"{literal(s)}/*" if (s := name.rpartition("/")[0]) in whole else literal(name)
        for name in kept
    )
    return list(dict.fromkeys(said))
