"""`trt-build bisect`: finds the node whose value differs from the original module's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from builder import parity
from builder.diagnosis import nodes, passes, reduction
from builder.diagnosis.ladder import compared_graph, compared_segment
from builder.diagnosis.nodes import Culprit
from builder.errors import EnvironmentProblem, TrtBuildError
from builder.pipeline import Clock, Order, segment_goldens, select_environment, stages
from builder.printable import counted

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from builder.conversion import Conversion
    from builder.diagnosis.reduction import Reduction
    from builder.lowering import LoweredGraph
    from builder.manifest import ModelSpec
    from builder.parity import Comparison
    from builder.triton import Golden


_FREEZING = "the output differs before the first pass: torch's own freezing changes it"


@dataclass(frozen=True)
class Bisection:
    """The result for one model.

    `step` is the step that differs ("lowered", "prepared", "segment 0", "network", "network of
    segment 0"), empty if none does; `golden` shows it. `goldens` and `networks` count the
    comparisons. `reduced` describes the files of --reduce; `note` is the reason if there are none.
    """

    name: str
    goldens: int = 0
    networks: int = 0
    step: str = ""
    golden: str = ""
    problem: str = ""
    culprit: Culprit | None = None
    reduced: Reduction | None = None
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing differs."""
        return not self.step

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON data."""
        return {
            "name": self.name,
            "passed": self.passed,
            "goldens": self.goldens,
            "networks": self.networks,
            "step": self.step or None,
            "golden": self.golden or None,
            "problem": self.problem or None,
            "node": self.culprit.as_dict() if self.culprit else None,
            "reduced": self.reduced.as_dict() if self.reduced else None,
            "note": self.note or None,
        }


def bisect(order: Order, reduce_to: Path | None, report: Any) -> Bisection:
    """Compare the model's graph and networks with the original module on every golden, and find the
    first node that differs.

    `reduce_to` is the folder for the smallest file that reproduces the difference. `report` is
    called with the model and each phase. Raises TrtBuildError if a step cannot be run at all.
    """
    select_environment(order)
    return _Bisect(order, reduce_to, Clock(order.spec.name, report)).run()


class _Bisect:
    def __init__(self, order: Order, reduce_to: Path | None, clock: Clock) -> None:
        self.order = order
        self.reduce_to = reduce_to
        self.clock = clock
        self.name = order.spec.name
        self.networks = 0

    def run(self) -> Bisection:
        with self.clock.phase("load"):
            loaded = stages.load(self.order.spec)
        with self.clock.phase("lower"):
            lowered = stages.lower(loaded)
        with self.clock.phase("goldens"):
            recorded = stages.record(lowered)
        goldens = _smallest_first(recorded.goldens)
        with self.clock.phase("compare the lowered graph"):
            wrong = _wrong_graph(
                lowered.graph, lowered.spec, lowered.outputs, goldens, "fp32"
            )
        if wrong is not None:
            return self._lowering(loaded, lowered, *wrong)
        prepared = stages.prepare(recorded)
        if prepared.graph is not lowered.graph:
            precision = segment_goldens.torch_precision(prepared.spec)
            goldens = _smallest_first(prepared.goldens)
            wrong = _wrong_graph(
                prepared.graph, prepared.spec, prepared.outputs, goldens, precision
            )
            if wrong is not None:
                return self._step("prepared", goldens, *wrong)
        with self.clock.phase("convert"):
            converted = stages.convert(prepared, self.order.layout, compares=False)
            converted = stages.keep_in_float32(converted)
        return self._networks(converted)

    def _step(
        self,
        step: str,
        goldens: Sequence[Golden],
        golden: Golden,
        comparison: Comparison,
    ) -> Bisection:
        """A step whose nodes cannot be compared one by one."""
        problem = comparison.problems[0]
        return Bisection(
            self.name, len(goldens), self.networks, step, golden.name, problem
        )

    def _lowering(
        self,
        loaded: stages.Loaded,
        lowered: stages.Lowered,
        golden: Golden,
        comparison: Comparison,
    ) -> Bisection:
        """Find the pass after which the output differs."""
        from builder.conversion import named_inputs

        specs = named_inputs(loaded.spec.inputs, lowered.graph)
        inputs = [_tensor(golden, str(spec.name)) for spec in specs]
        watch = passes.PassWatch(inputs, golden, loaded.spec.tolerance)
        problem = comparison.problems[0]
        result = Bisection(self.name, 1, self.networks, "lowered", golden.name, problem)
        try:
            with self.clock.phase("compare every pass"):
                stages.lower(loaded, paranoid=watch)
        except passes.FaultyPass as fault:
            located = passes.culprit_of(fault, inputs)
            if located is None:
                note = f"pass {fault.step} changes the output, and no single node causes it"
                return replace(result, note=note)
            culprit, value_name = located
            reduced, note = self._reduced_pass(fault, value_name, inputs, culprit)
            return replace(result, culprit=culprit, reduced=reduced, note=note)
        return replace(result, note=_FREEZING)

    def _networks(self, converted: stages.Converted) -> Bisection:
        """Compare each network on the goldens of its own inputs."""
        spec = converted.prepared.spec
        count = len(converted.prepared.goldens)
        for part in converted.networks:
            step = f"network of {part.label}" if part.location else "network"
            self.networks += 1
            with self.clock.phase(f"compare the {step}"):
                difference = self._network(step, part, spec, count)
            if difference is not None:
                return difference
        wrong = _wrong_segments(converted)
        if wrong is not None:
            return Bisection(self.name, count, self.networks, *wrong)
        return Bisection(self.name, count, self.networks)

    def _network(
        self, step: str, part: stages.Network, spec: ModelSpec, count: int
    ) -> Bisection | None:
        conversion = part.conversion
        spec = segment_goldens.of_network(spec, conversion)
        for golden in _smallest_first(part.goldens):
            tensors = segment_goldens.network_inputs(conversion, golden)
            problem, failed = _problem(conversion, tensors, golden, spec)
            if problem is None:
                continue
            values = nodes.values_of(conversion, tensors)
            culprit = nodes.first_culprit(values, failed)
            reduced = self._reduced_network(values, culprit)
            return Bisection(
                self.name,
                count,
                self.networks,
                step,
                golden.name,
                problem,
                culprit,
                *reduced,
            )
        return None

    def _reduced_network(
        self, values: nodes.Values, culprit: Culprit | None
    ) -> tuple[Reduction | None, str]:
        if self.reduce_to is None or culprit is None:
            return None, ""
        with self.clock.phase("reduce"):
            return reduction.of_network(values, culprit, self.order, self.reduce_to)

    def _reduced_pass(
        self,
        fault: passes.FaultyPass,
        value_name: str,
        inputs: Sequence[torch.Tensor],
        culprit: Culprit,
    ) -> tuple[Reduction | None, str]:
        if self.reduce_to is None or fault.before is None:
            return None, ""
        with self.clock.phase("reduce"):
            graph = passes.graph_of(fault.before)
            return reduction.of_pass(
                graph, value_name, inputs, culprit, self.order, self.reduce_to
            )


def _problem(
    conversion: Conversion,
    tensors: Sequence[torch.Tensor],
    golden: Golden,
    spec: ModelSpec,
) -> tuple[str | None, set[int]]:
    """The problem of the network's outputs on this golden, and the indices of the affected outputs;
    all of them if a layer cannot be evaluated.
    """
    all_indices = set(range(len(conversion.outputs)))
    try:
        outputs = segment_goldens.network_outputs(conversion, tensors, golden)
    except EnvironmentProblem:
        raise
    except TrtBuildError as error:
        return " ".join(str(error).split()), all_indices
    compared = parity.compare(outputs, golden, spec.tolerance, precision=spec.precision)
    if compared.passed:
        return None, set()
    bad = {output.name for output in compared.outputs if not output.passed}
    failed = {index for index, name in enumerate(conversion.outputs) if name in bad}
    return compared.problems[0], failed or all_indices


def _wrong_graph(
    graph: LoweredGraph,
    spec: ModelSpec,
    names: Sequence[str],
    goldens: Sequence[Golden],
    precision: str,
) -> tuple[Golden, Comparison] | None:
    """The first golden for which torch's run of the graph differs."""
    compared = compared_graph(graph, spec, names, goldens, precision)
    for golden, (_, comparison) in zip(goldens, compared, strict=True):
        if not comparison.passed:
            return golden, comparison
    return None


def _wrong_segments(converted: stages.Converted) -> tuple[str, str, str] | None:
    """The first segment that differs from the whole graph, both run by torch: its step, golden and
    problem.
    """
    partitioned = converted.partitioned
    if partitioned is None or converted.prepared.graph.as_written:
        return None
    for number, segment in enumerate(partitioned.partition.segments):
        for golden, comparison in compared_segment(
            segment, partitioned.partition, converted
        ):
            if not comparison.passed:
                return (
                    f"segment {number} ({segment.kind})",
                    golden,
                    comparison.problems[0],
                )
    return None


def _smallest_first(goldens: Sequence[Golden]) -> list[Golden]:
    return sorted(
        goldens, key=lambda golden: sum(array.size for array in golden.inputs.values())
    )


def _tensor(golden: Golden, name: str) -> torch.Tensor:
    return parity.to_torch(golden.inputs[name])


def description(bisection: Bisection) -> Iterator[tuple[str, str]]:
    """The (label, text) pairs of the lines that describe the node."""
    culprit = bisection.culprit
    if culprit is None:
        return
    yield "node", f"%{culprit.value} = {culprit.operator}"
    yield "source", culprit.location
    yield culprit.by, culprit.function
    dtypes = _signature(culprit.torch_dtypes)
    if culprit.network_dtypes:
        dtypes = f"torch {dtypes}; network {_signature(culprit.network_dtypes)}"
    yield "dtypes", dtypes
    yield "error", culprit.problem
    if not culprit.alone:
        yield "", "this node alone is right: it enlarges the small errors of its inputs"
    verb = "agrees" if culprit.agreed == 1 else "agree"
    yield "before", f"{counted(culprit.agreed, 'value')} before it {verb}"


def _signature(dtypes: Sequence[str]) -> str:
    """Format the dtypes, such as `float32, int64 -> float32`."""
    read = ", ".join(dtypes[:-1])
    if dtypes:
        return f"{read} -> {dtypes[-1]}"
    return ""
