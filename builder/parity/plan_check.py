"""Run every plan on its goldens before publication, and replace an incorrect one. TensorRT selects
kernels by time, so two builds of one network may use different kernels, and a kernel can be
incorrect. Workarounds are tried in this order, and every step is reported:

1. Rebuild without some of the tactic sources, and without the timing cache, whose measurements
   would choose the same kernels again.
2. In a precision with float16, keep the first layer whose value differs in float32.
3. Then keep the last modules in float32, as few as a bisection finds. A kernel that fuses several
   layers can be incorrect although each layer is correct if its value is an output.

If nothing helps, EngineError is raised with the first differing node, and the caller partitions the
model or runs it in torch.
"""

from __future__ import annotations

import glob
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.engine import named_values, output_layers
from builder.errors import EngineError
from builder.parity.arrays import to_numpy, to_torch
from builder.parity.comparison import compare, widened

if TYPE_CHECKING:
    import torch

    from builder.conversion import Conversion
    from builder.engine import BuildOptions, Plan
    from builder.manifest import ModelSpec
    from builder.triton import Golden

    Tensors = Mapping[str, torch.Tensor]
    Answers = Sequence[Tensors]
    Run = Callable[[Tensors], Answers]

GENERATED = ("EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS")
LIBRARIES = ("CUBLAS", "CUBLAS_LT", "CUDNN")
MOST_PROBES = 5
"""Maximum number of builds that bisect which modules are kept in float32."""
MARKS = 8
"""Number of additional outputs in one build of the search. More outputs mean fewer builds, but an
output prevents fusions, so the incorrect kernel may not be used.
"""


@dataclass(frozen=True)
class Tools:
    """The GPU functions of the check, which tests replace.

    `open` runs a plan: inputs by name give the outputs by name, once for each optimization profile
    that includes the shapes. `build` raises EngineError. `convert` repeats a conversion with
    patterns for keep_fp32, and with more values of the graph as outputs. `sources` are the names of
    all tactic sources.
    """

    open: Callable[[Plan], AbstractContextManager[Run]]
    build: Callable[[Conversion, BuildOptions], Plan]
    convert: Callable[[Conversion, Sequence[str], Sequence[str]], Conversion]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class CorrectPlan:
    """A correct plan, whose outputs are within the tolerance on every golden, and its conversion.
    `steps` reports the problems of earlier plans; `keep_fp32` are patterns of layers.
    """

    conversion: Conversion
    plan: Plan
    steps: tuple[str, ...] = ()
    keep_fp32: tuple[str, ...] = ()


def possible() -> bool:
    """Whether this machine can run the plans that it builds: TensorRT (not RTX) and a GPU."""
    from builder.engine import capabilities, flavor

    return flavor.has_gpu() and capabilities.current().flavor == "tensorrt"


def check(
    conversion: Conversion,
    plan: Plan,
    goldens: Sequence[Golden],
    spec: ModelSpec,
    options: BuildOptions,
    tools: Tools | None = None,
    report: Callable[[str], None] = lambda step: None,
) -> CorrectPlan:
    """The plan if it is correct, else the first correct plan of the steps above.

    Goldens have the conversion's inputs and outputs; without goldens the plan is returned
    unchecked. `report` receives each step when it ends. Raises EngineError, with every step and the
    first differing value (`if`, as `%name`), if no plan is correct.
    """
    from builder.conversion import reduces

    checker = _Check(goldens, spec, options, tools or on_gpu(), report)
    problem = checker.problem(plan)
    if problem is None:
        return CorrectPlan(conversion, plan)
    checker.step(f"the plan is wrong: {problem}")
    correct = checker.by_other_tactics(conversion)
    if reduces(spec.precision):
        correct = correct or checker.in_float32(conversion)
        correct = correct or checker.end_in_float32(conversion)
    if correct is not None:
        return _with_hint(correct, spec)
    raise EngineError(
        f"TensorRT builds no correct plan of the network: {'; '.join(checker.steps)}",
        where=checker.first,
        fix="use another version of TensorRT, or precision: fp32",
    )


def _with_hint(correct: CorrectPlan, spec: ModelSpec) -> CorrectPlan:
    """Add a step that names the manifest's key for the layers in float32, so that the next build
    needs no search.
    """
    if not correct.keep_fp32:
        return correct
    patterns = ", ".join(f'"{name}"' for name in (*spec.keep_fp32, *correct.keep_fp32))
    hint = f"keep_fp32: [{patterns}] in the manifest builds this plan without a search"
    return replace(correct, steps=(*correct.steps, hint))


@dataclass(eq=False)
class _Check:
    goldens: Sequence[Golden]
    spec: ModelSpec
    options: BuildOptions
    tools: Tools
    report: Callable[[str], None]
    steps: list[str] = field(default_factory=list)
    wrong: Golden | None = None
    first: str | None = None

    def step(self, text: str) -> None:
        """Record and report a step."""
        self.steps.append(text)
        self.report(text)

    def problem(self, plan: Plan) -> str | None:
        """The problem of the first golden that differs, or None."""
        try:
            with self.tools.open(plan) as run:
                for golden in self.goldens:
                    inputs = {
                        name: to_torch(array) for name, array in golden.inputs.items()
                    }
                    for output in run(inputs):
                        arrays = {
                            name: to_numpy(tensor.cpu())
                            for name, tensor in output.items()
                        }
                        comparison = compare(
                            widened(arrays, golden),
                            golden,
                            self.spec.tolerance,
                            precision=self.spec.precision,
                        )
                        if not comparison.passed:
                            self.wrong = golden
                            return f"golden {golden.name}: {'; '.join(comparison.problems)}"
        except EngineError as failure:
            return failure.message
        return None

    def by_other_tactics(self, conversion: Conversion) -> CorrectPlan | None:
        """A correct plan without some of the tactic sources, or None."""
        for without, options in _fewer_sources(self.options, self.tools.sources):
            plan = self._attempt(conversion, options, f"without {', '.join(without)}")
            if plan is not None:
                return CorrectPlan(conversion, plan, tuple(self.steps))
        return None

    def in_float32(self, conversion: Conversion) -> CorrectPlan | None:
        """A correct plan with the first differing layer in float32, or None."""
        layer = self._first_wrong(conversion)
        if layer is None:
            self.step("no layer differs if it is an output")
            return None
        return self._with_patterns(
            conversion, (glob.escape(layer),), f"with {layer} in float32"
        )

    def end_in_float32(self, conversion: Conversion) -> CorrectPlan | None:
        """A correct plan with the last modules in float32, or None. The bisection assumes that more
        modules in float32 are not worse.
        """
        modules = _modules(conversion)
        first, end = 0, len(modules)
        correct = None
        for _ in range(MOST_PROBES):
            start = (first + end) // 2
            if start == first:
                break
            how = f"with the last {len(modules) - start} of {len(modules)} modules in float32"
            corrected = self._with_patterns(
                conversion, patterns_from(modules, start), how
            )
            if corrected is None:
                end = start
            else:
                first = start
                correct = corrected
        return correct and replace(correct, steps=tuple(self.steps))

    def _with_patterns(
        self, conversion: Conversion, patterns: tuple[str, ...], how: str
    ) -> CorrectPlan | None:
        """A correct plan with the layers of these patterns in float32, or None."""
        again = self.tools.convert(conversion, (*self.spec.keep_fp32, *patterns), ())
        plan = self._attempt(again, self.options, how)
        if plan is None:
            return None
        return CorrectPlan(again, plan, tuple(self.steps), patterns)

    def _attempt(
        self, conversion: Conversion, options: BuildOptions, how: str
    ) -> Plan | None:
        """A new plan if it is correct. The step is reported in any case."""
        with tempfile.TemporaryDirectory() as folder:
            uncached = replace(options, timing_cache=Path(folder) / "own.cache")
            try:
                plan = self.tools.build(conversion, uncached)
            except EngineError as refusal:
                self.step(f"rebuilt {how}: {refusal.message}")
                return None
        problem = self.problem(plan)
        self.step(f"rebuilt {how}: {problem or 'right'}")
        return plan if problem is None else None

    def _first_wrong(self, conversion: Conversion) -> str | None:
        """The first layer whose value differs. Each trial builds the network with MARKS additional
        outputs at even distances.
        """
        golden = self.wrong
        if golden is None:
            return None
        truth = _values(conversion, golden)
        values_of_layers = [
            (layer, name)
            for layer, name in named_values(conversion.network)
            if name in truth
        ]

        def are_wrong(indices: Sequence[int]) -> list[bool]:
            names = [values_of_layers[at][1] for at in indices]
            values = {name: truth[name] for name in names}
            self.report(
                f"search of the first wrong value among {len(values_of_layers)}"
            )
            marked = self.tools.convert(conversion, self.spec.keep_fp32, tuple(values))
            return self._values_differ(marked, golden, values)

        index = first_true(len(values_of_layers), are_wrong, MARKS)
        if index is None:
            # if no inner value differs, the layer of an output must be wrong
            return next(output_layers(conversion.network), None)
        layer, value = values_of_layers[index]
        self.first = self.first or f"%{value}"
        return layer

    def _values_differ(
        self, marked: Conversion, golden: Golden, truth: Tensors
    ) -> list[bool]:
        """Whether each value of the marked plan differs. A value that is not an output does not."""
        inputs = {key: to_torch(array) for key, array in golden.inputs.items()}
        with self.tools.open(self.tools.build(marked, self.options)) as run:
            output = run(inputs)[0]
        return [
            f"%{name}" in output
            and self._value_differs(name, output[f"%{name}"], value)
            for name, value in truth.items()
        ]

    def _value_differs(
        self, name: str, value: torch.Tensor, truth: torch.Tensor
    ) -> bool:
        comparison = compare(
            {name: to_numpy(value.cpu().to(truth.dtype))},
            {name: to_numpy(truth)},
            self.spec.tolerance,
            precision=self.spec.precision,
        )
        return not comparison.passed


def _values(conversion: Conversion, golden: Golden) -> Tensors:
    """The values of the lowered graph, by name, with the golden's inputs."""
    inputs = [to_torch(golden.inputs[str(spec.name)]) for spec in conversion.inputs]
    return conversion.lowered.values(*inputs)


def _modules(conversion: Conversion) -> list[str]:
    """The modules of the network's layers in the order of their first layers, as paths. A layer
    outside a module is listed by its name.
    """
    paths = (path for path, _ in named_values(conversion.network))
    return list(dict.fromkeys(path.rpartition("/")[0] or path for path in paths))


def patterns_from(modules: Sequence[str], start: int) -> tuple[str, ...]:
    """Patterns for keep_fp32 that match the layers of `modules[start:]` and of no other module. A
    parent stands for its children if all of them are in that part.
    """
    others = modules[:start]
    patterns = (_pattern(module, others) for module in modules[start:])
    return tuple(dict.fromkeys(patterns))


def _pattern(module: str, others: Sequence[str]) -> str:
    """The pattern of the module's highest parent that contains none of the others."""
    if "::" in module:  # the name of a layer
        return glob.escape(module)
    parts = module.split(".")
    for depth in range(1, len(parts) + 1):
        parent = ".".join(parts[:depth])
        if not any(_contains(parent, other) for other in others):
            return f"{glob.escape(parent)}[./]*"
    return f"{glob.escape(module)}/*"


def _contains(parent: str, module: str) -> bool:
    return f"{module}.".startswith(f"{parent}.")


def first_true(
    count: int, are_true: Callable[[Sequence[int]], Sequence[bool]], most: int
) -> int | None:
    """The smallest index below `count` that is true, if all later indices are true; None if none of
    the tested indices is true.

    Each call tests at most `most` indices at even distances, the first call also the last index.
    There are about log(count) / log(most + 1) calls.
    """
    if not count:
        return None
    low = 0
    high = count - 1
    is_known = False
    while (
        tested := _indices_between(low, high, most)
        if is_known
        else [*_indices_between(0, high, most - 1), high]
    ):
        answers = dict(zip(tested, are_true(tested), strict=True))
        first = next((at for at in tested if answers[at]), high if is_known else None)
        if first is None:
            return None
        low = max((at + 1 for at in tested if at < first), default=low)
        high = first
        is_known = True
    return high


def _indices_between(low: int, high: int, most: int) -> list[int]:
    """At most `most` indices from `low` to `high`, which is not included, at even distances."""
    size = high - low
    if size <= most:
        return list(range(low, high))
    return [low + size * (number + 1) // (most + 1) for number in range(most)]


def _fewer_sources(
    options: BuildOptions, known: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], BuildOptions]]:
    """(the sources left out, the options without them): those that generate convolutions, then
    libraries.
    """
    chosen = tuple(name.upper() for name in options.tactic_sources or known)
    for group in (GENERATED, LIBRARIES):
        without = tuple(source for source in group if source in chosen)
        if without:
            remaining = tuple(source for source in chosen if source not in without)
            yield without, replace(options, tactic_sources=remaining)


def on_gpu() -> Tools:
    """The tools of this machine's GPU and TensorRT."""
    from builder import engine
    from builder.engine import trt

    return Tools(_open, engine.build, _convert, tuple(trt.TacticSource.__members__))


@contextmanager
def _open(plan: Plan) -> Iterator[Run]:
    from builder.engine import Engine

    with Engine(plan.data) as engine:

        def run(inputs: Tensors) -> Answers:
            tensors = [inputs[name] for name in engine.inputs]
            answers = []
            for profile in engine.profiles_for(tensors):
                outputs = engine.infer(tensors, profile)
                pairs = zip(engine.outputs, outputs, strict=True)
                answers.append({name: tensor.clone() for name, tensor in pairs})
            return answers

        yield run


def _convert(
    conversion: Conversion, keep_fp32: Sequence[str], outputs: Sequence[str]
) -> Conversion:
    from builder.conversion import convert_again

    again = convert_again(conversion, keep_fp32)
    for output in outputs:
        _mark(again.network, f"%{output}")
    return again


def _mark(network: Any, name: str) -> None:
    """Also mark the tensor of this name as an output."""
    for layer in map(network.get_layer, range(network.num_layers)):
        for tensor in map(layer.get_output, range(layer.num_outputs)):
            if tensor.name == name and not tensor.is_network_output:
                network.mark_output(tensor)
                return
