"""Find the cheapest precision within a model's tolerance, by trials that keep different layers in
float32.

A trial runs the engine if there is a GPU, else the network on the CPU in its dtypes. All goldens
are compared, starting with the last that failed.
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

from builder import engine, parity, pipeline, precisions, processes, unforeseen
from builder.errors import (
    EngineError,
    EnvironmentProblem,
    ParityError,
    TrtBuildError,
    UnsupportedOperators,
    UsageError,
)
from builder.manifest import ModelSpec, editing
from builder.pipeline import Order, layer_names, options_of, record, stages
from builder.progress import Progress, silent
from builder.repository import jobs as slots
from builder.repository.quickxplain import minimal
from builder.repository.settings import Settings, resolved

if TYPE_CHECKING:
    import torch

    from builder.conversion import Conversion
    from builder.pipeline import Converted
    from builder.triton import Golden

    Run = Callable[..., Sequence[torch.Tensor]]

DEFAULT = "fp16"
"""The default precision of the search."""


@dataclass
class Search:
    """The result for one model. `precision` and `keep_fp32` are the values for its manifest.
    `layers` is the number of candidate layers, `problem` the difference with none kept, `judge` is
    "engine" or "reference". `error` is the reason if no precision was found.
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
    """For each trial the number of kept layers, and whether every golden passed."""


def first_trial(spec: ModelSpec, precision: str | None) -> ModelSpec:
    """The spec of the first trial. Raises UsageError if the model has no manifest."""
    if spec.manifest is None:
        raise UsageError(
            f"model {spec.name!r} has no manifest to write the precision into",
            fix=f"write one with trt-build init {spec.path}",
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

    The search uses the setting `precision`, else the manifest's, else fp16. It first reduces every
    layer that the policy allows, then keeps as few layers in float32 (`keep_fp32`) as needed for
    all goldens to pass. The result is fp32 if no layer can be reduced, or TensorRT would run fewer
    nodes than in fp32. Each result is written immediately. If a model fails, it has an `error`, and
    the others continue. Settings and `keywords` are those of build_repository. Nothing is
    published; `out` is used only in the command that reproduces a crash. Raises UsageError if a
    model has no manifest or one that cannot be edited, EnvironmentProblem if the manifest is not
    writable, and the errors of build_repository.
    """
    chosen = resolved(settings, keywords)
    specs = [
        first_trial(spec, chosen.precision)
        for spec in replace(chosen, precision=None).specs(models)
    ]
    for spec in specs:
        editing.check(_manifest(spec))
    orders = chosen.orders(specs, Path(out))
    return perform_all(orders, progress or silent, jobs, isolate)


def perform_all(
    orders: Sequence[Order], progress: Progress, jobs: int, isolate: bool
) -> list[Search]:
    """The searches of the orders, each in a separate process unless disabled."""
    if not isolate:
        return [perform(order, progress) for order in orders]
    tasks = [
        processes.Task(
            partial(perform, order),
            progress,
            f"{order.reproduce} --search-precision",
            limits=slots.limits(order.spec.limits),
            sandbox=_sandbox(order),
        )
        for order in orders
    ]
    modules = slots.modules(order.spec.path for order in orders)
    results = processes.run(
        tasks, jobs or slots.default_jobs(), slots.environments(), modules=modules
    )
    pairs = zip(orders, results, strict=True)
    return [
        answer
        if isinstance(answer, Search)
        else Search(order.spec.name, order.spec.manifest, error=answer)
        for order, answer in pairs
    ]


def _sandbox(order: Order) -> processes.Sandbox:
    """The sandbox of a search, which also writes the manifest, through a new file beside it."""
    chosen = slots.sandbox(order)
    return replace(
        chosen, writable=(*chosen.writable, _manifest(order.spec).resolve().parent)
    )


def _manifest(spec: ModelSpec) -> Path:
    assert spec.manifest is not None  # ensured by first_trial()
    return spec.manifest


def perform(order: Order, progress: Progress) -> Search:
    """Search for the model of the order, and write the result immediately, because later searches
    may be interrupted.

    Errors are returned or raised as in builder.repository.build.perform.
    """
    search = Search(order.spec.name, order.spec.manifest)
    started = time.monotonic()
    try:
        pipeline.select_environment(order)
        _Trials(order, search, progress).run()
        if search.manifest is not None:
            values = {
                "precision": search.precision,
                "keep_fp32": list(search.keep_fp32),
            }
            search.written = editing.edit(search.manifest, values)
    except (EnvironmentProblem, BrokenPipeError):
        raise
    except Exception as error:
        search.error = unforeseen.as_defect(error)
    search.seconds = round(time.monotonic() - started, 3)
    return search


class _FewerNodes(Exception):
    """In this precision TensorRT would run fewer nodes than in float32."""


class _Trials:
    """One model, loaded once and converted for every trial."""

    def __init__(self, order: Order, search: Search, progress: Progress) -> None:
        self.order = order
        self.spec = order.spec
        self.search = search
        self.progress = progress
        recorded = record(order, pipeline.Clock(order.spec.name, silent))
        # the smallest first
        goldens = sorted(
            recorded.goldens,
            key=lambda golden: sum(array.nbytes for array in golden.inputs.values()),
        )
        self.recorded = replace(recorded, goldens=tuple(goldens))
        self.search.judge = (
            "engine"
            if engine.flavor.name() == "tensorrt" and engine.flavor.has_gpu()
            else "reference"
        )
        self.known: dict[tuple[str, ...], str] = {}
        self._refused = False

    def run(self) -> None:
        """Run the search.

        Raises ParityError if the model fails for a reason other than precision.
        """
        search = self.search
        search.precision = self.spec.precision
        search.problem = self.problem(())
        if not search.problem:
            search.keep_fp32 = self.spec.keep_fp32
            return
        if self._refused:
            search.precision = "fp32"
            search.keep_fp32 = self.spec.keep_fp32
            return
        layers = list(
            layer_names(part.conversion for part in self._convert(self.spec).networks)
        )
        search.layers = len(layers)
        if still := self.problem(layers):
            raise ParityError(
                f"the outputs differ even with every layer in float32: {still}",
                where=str(self.spec.manifest),
                fix="precision is not the cause; `trt-build check --paranoid` shows the location",
            )
        in_float32 = minimal(layers, lambda names: not self.problem(names))
        if len(in_float32) == len(layers) or not self._reduces(in_float32):
            search.precision = "fp32"
            search.keep_fp32 = self.spec.keep_fp32
        else:
            search.keep_fp32 = (*self.spec.keep_fp32, *patterns(in_float32, layers))

    def _reduces(self, in_float32: Sequence[str]) -> bool:
        """Whether anything computes in less than float32 with these layers kept."""
        from builder.conversion import quantizes

        if not engine.capabilities.current().strongly_typed:
            return True  # TensorRT chooses precisions
        conversions = [
            part.conversion
            for part in self._convert(self._keeping(in_float32)).networks
        ]
        return any(
            engine.has_half(conversion.network) or quantizes(conversion.lowered.graph)
            for conversion in conversions
        )

    def _keeping(self, in_float32: Sequence[str]) -> ModelSpec:
        return replace(
            self.spec, keep_fp32=(*self.spec.keep_fp32, *map(literal, in_float32))
        )

    def problem(self, in_float32: Sequence[str]) -> str:
        """The difference with these layers kept in float32; empty if every golden passes."""
        key = tuple(in_float32)
        if key not in self.known:
            self.progress(
                self.spec.name,
                f"trial {len(self.known) + 1}: {len(key)} layers kept in float32",
            )
            self.known[key] = self._tried(self._keeping(key))
            self.search.trials = len(self.known)
            self.search.tried.append((len(key), not self.known[key]))
        return self.known[key]

    def _tried(self, spec: ModelSpec) -> str:
        try:
            converted = self._convert_checked(spec)
            for part in converted.networks:
                self._judge(part.conversion, part.goldens, converted.prepared.spec)
        except (ParityError, EngineError) as failure:
            return failure.message
        except _FewerNodes as failure:
            self._refused = True
            return str(failure)
        return ""

    def _convert_checked(self, spec: ModelSpec) -> Converted:
        """The converted model. Raises _FewerNodes if TensorRT would run more of it in float32."""
        try:
            converted = self._convert(spec)
        except UnsupportedOperators as refusal:
            # raises the refusal again if float32 is also refused
            if self._nodes_in_float32:
                raise _FewerNodes(refusal.message) from refusal
            raise
        if converted.partitioned and _nodes(converted) < self._nodes_in_float32:
            raise _FewerNodes(
                f"TensorRT runs fewer nodes of the model in {spec.precision} than in fp32"
            )
        return converted

    @cached_property
    def _nodes_in_float32(self) -> int:
        return _nodes(self._convert(replace(self.spec, precision="fp32", keep_fp32=())))

    def _convert(self, spec: ModelSpec) -> Converted:
        """The model, converted as for a build."""
        return stages.convert(stages.prepare(self.recorded, spec), self.order.layout)

    def _judge(
        self, conversion: Conversion, goldens: Sequence[Golden], spec: ModelSpec
    ) -> None:
        """Raise ParityError with the first golden that differs."""
        spec = pipeline.segment_goldens.of_network(spec, conversion)
        with self._runs(conversion) as run:
            for golden in goldens:
                problems = _differences(run, conversion, golden, spec)
                if problems:
                    self._compare_first(golden.name)
                    raise ParityError(f"golden {golden.name}: {'; '.join(problems)}")

    def _compare_first(self, name: str) -> None:
        """Compare this golden first from now on."""
        goldens = sorted(self.recorded.goldens, key=lambda golden: golden.name != name)
        self.recorded = replace(self.recorded, goldens=tuple(goldens))

    @contextmanager
    def _runs(self, conversion: Conversion) -> Iterator[Run]:
        """Run the network on CPU tensors, in the order of its inputs and outputs."""
        from builder import reference

        if self.search.judge == "reference":
            yield lambda *tensors: reference.run(conversion, tensors)
        else:
            with engine.Engine(
                engine.build(conversion, options_of(self.order)).data
            ) as built:
                yield built


def _nodes(converted: Converted) -> int:
    """The number of top-level nodes that TensorRT would run."""
    whole = [part.conversion for part in converted.networks if len(part.location) < 2]
    return sum(len(list(conversion.lowered.graph.nodes())) for conversion in whole)


def _differences(
    run: Run, conversion: Conversion, golden: Golden, spec: ModelSpec
) -> Sequence[str]:
    tensors = [
        parity.to_torch(golden.inputs[str(tensor_spec.name)])
        for tensor_spec in conversion.inputs
    ]
    arrays = map(parity.to_numpy, run(*tensors))
    outputs = dict(zip(conversion.outputs, arrays, strict=True))
    return parity.compare(
        parity.widened(outputs, golden),
        golden,
        spec.tolerance,
        precision=spec.precision,
    ).problems


def literal(name: str) -> str:
    """The pattern that matches only this name."""
    return re.sub(r"([*?\[])", r"[\1]", name)


def patterns(names_in_float32: Sequence[str], layers: Sequence[str]) -> list[str]:
    """`names_in_float32` as patterns: `scope/*` if it contains all of several layers of a scope."""
    scopes: dict[str, list[str]] = {}
    for name in layers:
        scopes.setdefault(name.rpartition("/")[0], []).append(name)
    whole = {
        scope
        for scope, names in scopes.items()
        if scope and len(names) > 1 and set(names) <= set(names_in_float32)
    }
    merged = []
    for name in names_in_float32:
        scope = name.rpartition("/")[0]
        merged.append(f"{literal(scope)}/*" if scope in whole else literal(name))
    return list(dict.fromkeys(merged))
