"""Compares the same goldens at every step from the original module to the network.

Each step is compared with the previous one on the same inputs. The first failing step is therefore
the incorrect one, and later steps can still pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

from builder import parity, pipeline, torchscript, unforeseen
from builder.errors import EnvironmentProblem, ParityError
from builder.pipeline import Clock, Order, select_environment, stages

if TYPE_CHECKING:
    import torch

    from builder.lowering import LoweredGraph
    from builder.manifest import ModelSpec
    from builder.parity import Comparison, ModelParity, served
    from builder.partition import Partition, Segment
    from builder.triton import Golden

    Compared = tuple[str, Comparison]

OK = "ok"
FAILED = "failed"
NOT_RUN = "not run"


@dataclass(frozen=True)
class Step:
    """A step: the number of compared outputs, the largest error as a share of its tolerance, and
    the first `problem` with its golden.

    `note` has the reason why a step was not run, or a remark.
    """

    name: str
    answers: int = 0
    share: float | None = None
    problem: str | None = None
    note: str = ""

    @property
    def result(self) -> str:
        """`ok`, `failed` or `not run`."""
        if self.problem:
            return FAILED
        return OK if self.answers else NOT_RUN

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; an infinite share is null."""
        finite = self.share is not None and isfinite(self.share)
        return {
            **asdict(self),
            "result": self.result,
            "share": self.share if finite else None,
        }


@dataclass(frozen=True)
class Ladder:
    """All steps of one model in order."""

    name: str
    steps: tuple[Step, ...]

    @property
    def breaks_at(self) -> str | None:
        """The first step that failed; None if none did."""
        return next((step.name for step in self.steps if step.result == FAILED), None)

    def as_dict(self) -> dict[str, Any]:
        """The result as JSON data."""
        steps = [step.as_dict() for step in self.steps]
        passed = self.breaks_at is None
        return {
            "name": self.name,
            "passed": passed,
            "breaks_at": self.breaks_at,
            "steps": steps,
        }


def run_steps(
    order: Order, published: served.PublishedModel | None, report: Any
) -> tuple[Step, ...]:
    """Compare the steps of one model from its file to its networks in this process: original,
    lowered, each segment and each network.

    `published` has the goldens for the original module; None skips that step. `report` is called
    with the model and each phase.

    Problems of the model are in the steps. Raises EnvironmentProblem and UsageError.
    """
    select_environment(order)
    return tuple(_Run(order, published, Clock(order.spec.name, report)).steps())


@dataclass(eq=False)
class _Run:
    order: Order
    published: served.PublishedModel | None
    clock: Clock

    def steps(self) -> Iterator[Step]:
        """Yield each step as soon as it is compared. Steps after one that raised are left out."""
        name = "original"
        try:
            with self.clock.phase("load"):
                loaded = stages.load(self.order.spec)
            name = "lowered"
            with self.clock.phase("lower"):
                lowered = self._lowered(loaded)
            name = "original"
            with self.clock.phase("goldens"):
                recorded = stages.record(lowered)
                prepared = stages.prepare(recorded)
            if self.published is not None:
                yield _step(name, _published(prepared, self.published))
            name = "lowered"
            yield self._lowered_step(lowered, recorded)
            if prepared.graph is not lowered.graph:
                name = f"prepared ({prepared.spec.precision})"
                yield _step(name, _by_torch(prepared))
            name = "network"
            with self.clock.phase("convert"):
                converted = stages.convert(prepared, self.order.layout, compares=False)
                converted = stages.keep_in_float32(converted)
            with self.clock.phase("compare"):
                yield from _partitioned(converted)
        except EnvironmentProblem:
            raise
        except Exception as error:
            yield Step(name, problem=_error_text(error))

    def _lowered(self, loaded: stages.Loaded) -> stages.Lowered:
        try:
            return stages.lower(loaded)
        except EnvironmentProblem:
            raise
        except Exception as error:
            return stages.lower_as_written(loaded, unforeseen.as_defect(error))

    def _lowered_step(self, lowered: stages.Lowered, recorded: stages.Recorded) -> Step:
        spec = lowered.spec
        reason = lowered.graph.as_written
        compared = compared_graph(
            lowered.graph, spec, lowered.outputs, recorded.goldens, "fp32"
        )
        note = f"torch runs it as it is written: {reason}" if reason else ""
        return _step("lowered", compared, note)


def _step(name: str, compared: Iterable[Compared], note: str = "") -> Step:
    """Return the largest error of the comparisons. An exception becomes the step's problem."""
    answers = 0
    shares = [0.0]
    problem = None
    try:
        for golden, comparison in compared:
            answers += 1
            shares.append(comparison.share or 0.0)
            if problem is None and not comparison.passed:
                problem = f"golden {golden}: {comparison.problems[0]}"
    except EnvironmentProblem:
        raise
    except Exception as error:
        problem = problem or _error_text(error)
    if not answers and problem is None:
        note = note or "no golden reaches it"
    return Step(name, answers, max(shares) if answers else None, problem, note)


def _error_text(error: Exception) -> str:
    return " ".join(unforeseen.as_defect(error).message.split())


def _published(
    prepared: stages.Prepared, published: served.PublishedModel
) -> Iterator[Compared]:
    """Compare the original module's present outputs with the published goldens.

    Raises ParityError for another file, or other inputs.
    """

    before = published.sidecar.get("source", {}).get("sha256")
    if before not in (None, torchscript.sha256(prepared.spec.path)):
        raise ParityError(f"{prepared.spec.path} is not the file that was published")
    now = {golden.name: golden for golden in prepared.goldens}
    for golden in published.goldens:
        if golden.name not in now or not _equal(now[golden.name].inputs, golden.inputs):
            raise ParityError(
                f"golden {golden.name} was recorded with other inputs than the manifest gives now"
            )
        outputs = now[golden.name].outputs
        yield golden.name, parity.compare(outputs, golden, prepared.spec.tolerance)


def _equal(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether the arrays are equal, bit by bit."""
    return left.keys() == right.keys() and all(
        array.dtype == right[name].dtype and array.tobytes() == right[name].tobytes()
        for name, array in left.items()
    )


def _by_torch(prepared: stages.Prepared) -> Iterator[Compared]:
    precision = pipeline.segment_goldens.torch_precision(prepared.spec)
    graph = prepared.graph
    spec = prepared.spec
    return compared_graph(graph, spec, prepared.outputs, prepared.goldens, precision)


def compared_graph(
    graph: LoweredGraph,
    spec: ModelSpec,
    names: Sequence[str],
    goldens: Sequence[Golden],
    precision: str,
) -> Iterator[Compared]:
    """Compare the graph, run by torch, with each golden; the outputs are named `names`."""
    from builder.conversion import named_inputs

    inputs = [str(tensor_spec.name) for tensor_spec in named_inputs(spec.inputs, graph)]
    for golden in goldens:
        results = graph.run(*(parity.to_torch(golden.inputs[name]) for name in inputs))
        tensors = graph.named(names).named_outputs(results)
        outputs = {name: parity.to_numpy(tensor) for name, tensor in tensors.items()}
        yield (
            golden.name,
            parity.compare(outputs, golden, spec.tolerance, precision=precision),
        )


def _partitioned(converted: stages.Converted) -> Iterator[Step]:
    """Compare each segment run by torch and its network run by the reference, or the one network of
    a whole model.
    """
    partitioned = converted.partitioned
    networks = list(converted.networks)
    if partitioned is None:
        yield _step("network", _network(networks[0], converted))
        return
    partition = partitioned.partition
    for number, segment in enumerate(partition.segments):
        if not converted.prepared.graph.as_written:
            # the whole graph is its only segment
            name = f"segment {number} ({segment.kind})"
            yield _step(name, compared_segment(segment, partition, converted))
        for part in networks:
            if part.location[0] == number:
                yield _step(f"network of {part.label}", _network(part, converted))


def compared_segment(
    segment: Segment, partition: Partition, converted: stages.Converted
) -> Iterator[Compared]:
    """Compare the segment with the whole graph, on the whole graph's values."""
    spec = converted.prepared.spec
    for golden in converted.prepared.goldens:
        shaped = _boundary(segment, partition, golden)
        results = segment.lowered.run(*(shaped[name] for name in segment.inputs))
        outputs = {
            name: parity.to_numpy(tensor)
            for name, tensor in zip(segment.outputs, results, strict=True)
        }
        truth = {name: parity.to_numpy(shaped[name]) for name in segment.outputs}
        precision = pipeline.segment_goldens.torch_precision(spec)
        yield (
            golden.name,
            parity.compare(outputs, truth, spec.tolerance, precision=precision),
        )


def _boundary(
    segment: Segment, partition: Partition, golden: Golden
) -> dict[str, torch.Tensor]:
    """The whole graph's values of the segment's inputs and outputs, by name."""
    whole = partition.whole
    assert whole is not None
    names = {
        name: partition.values[name] for name in (*segment.inputs, *segment.outputs)
    }
    inputs = [parity.to_torch(golden.inputs[name]) for name in partition.inputs]
    input_names = (value.debugName() for value in whole.graph.inputs())
    known = dict(zip(input_names, inputs, strict=True))
    known |= whole.values(*inputs, names=set(names.values()))
    # a tensor without axes has one axis at the boundary of a segment
    return {
        name: _with_axis(known[value], name, partition) for name, value in names.items()
    }


def _with_axis(tensor: torch.Tensor, name: str, partition: Partition) -> torch.Tensor:
    is_endpoint = name in (*partition.inputs, *partition.outputs)
    if not tensor.dim() and not is_endpoint:
        return tensor.reshape(1)
    return tensor


def _network(part: stages.Network, converted: stages.Converted) -> Iterator[Compared]:
    spec = converted.prepared.spec
    for golden in part.goldens:
        tensors = pipeline.segment_goldens.network_inputs(part.conversion, golden)
        outputs = pipeline.segment_goldens.network_outputs(
            part.conversion, tensors, golden
        )
        compared = parity.compare(
            outputs, golden, spec.tolerance, precision=spec.precision
        )
        yield golden.name, compared


def step_of_parity(name: str, model: ModelParity) -> Step:
    """Create a step from the outputs of an engine or an endpoint."""
    problem = model.problems[0] if model.problems else None
    failed = (result for result in model.results if not result.passed)
    if problem is None and (first := next(failed, None)) is not None:
        problem = f"golden {first.golden}, {first.protocol}: {first.problems[0]}"
    if problem is None and not model.results:
        problem = "it has no goldens"
    note = (
        f"answered by {model.answered_by} ({model.device})" if model.answered_by else ""
    )
    return Step(name, len(model.results), model.share, problem, note)
