"""Finds the pass that changes a model's output, and the node that it rewrote incorrectly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from builder import parity
from builder.diagnosis.nodes import PASS, Culprit
from builder.errors import summary
from builder.graph_types import Graph, Node, Value
from builder.lowering import (
    LoweredGraph,
    Paranoid,
    Pass,
    execute_graph,
    ir,
    source_location,
)

if TYPE_CHECKING:
    import torch

    from builder.manifest import Tolerance
    from builder.triton import Golden

Tensors = dict[str, "torch.Tensor"]


@dataclass(frozen=True)
class Recorded:
    """A copy of a graph, and the names of its values in the original graph, in the order of the
    copy's nodes.
    """

    graph: Any
    names: tuple[str, ...]

    def name_of(self) -> dict[str, str]:
        """The original graph's name by the copy's name of a value."""
        copy_names = [value.debugName() for value in _values(self.graph)]
        return dict(zip(copy_names, self.names, strict=True))


class FaultyPass(Exception):
    """A pass changed the output. Contains the graphs before and after it."""

    def __init__(
        self, step: str, before: Recorded | None, after: Recorded, problem: str
    ) -> None:
        super().__init__(problem)
        self.step = step
        self.before = before
        self.after = after
        self.problem = problem


class PassWatch(Paranoid):
    """Compares the graph's output with the golden after every pass, and raises FaultyPass
    at the first difference.
    """

    def __init__(
        self, inputs: Sequence[torch.Tensor], golden: Golden, tolerance: Tolerance
    ) -> None:
        super().__init__(inputs)
        self.inputs = tuple(inputs)
        self.golden = golden
        self.tolerance = tolerance
        self.last: Recorded | None = None

    def check(self, graph: Graph, step: Pass) -> None:
        """Raise FaultyPass if the output no longer equals the golden's."""
        if len(list(graph.inputs())) != len(self.inputs):
            return  # before the inputs are flat, the graph cannot be run
        problem = self._problem(graph)
        now = _recorded(graph)
        if problem is not None:
            raise FaultyPass(step.name, self.last, now, problem)
        self.last = now

    def _problem(self, graph: Graph) -> str | None:
        import torch

        try:
            with torch.no_grad():
                results = execute_graph(graph, [value.clone() for value in self.inputs])
        except RuntimeError as error:
            return f"torch cannot run the graph: {summary(error)}"
        arrays = [parity.to_numpy(tensor) for tensor in _flat(results)]
        names = list(self.golden.outputs)
        if len(arrays) != len(names):
            return None  # the outputs are not flat yet
        outputs = dict(zip(names, arrays, strict=True))
        compared = parity.compare(outputs, self.golden, self.tolerance)
        return None if compared.passed else compared.problems[0]


def _flat(value: torch.Tensor | tuple[torch.Tensor, ...]) -> list[Any]:
    """The tensors of an output in the order of the flattened interface."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [inner for item in value.values() for inner in _flat(item)]
    if isinstance(value, list | tuple):
        return [inner for item in value for inner in _flat(item)]
    if value is None:
        return []
    return [torch.as_tensor(value)]


def _values(graph: Graph) -> list[Any]:
    return [
        *graph.inputs(),
        *(value for node in graph.nodes() for value in node.outputs()),
    ]


def _recorded(graph: Graph) -> Recorded:
    return Recorded(graph.copy(), tuple(value.debugName() for value in _values(graph)))


def culprit_of(
    fault: FaultyPass, inputs: Sequence[torch.Tensor]
) -> tuple[Culprit, str] | None:
    """Return the node as it was before the pass, with the pass as its function, and the name of its
    value in `fault.before`.

    None if there was no graph before, or no node can be identified.
    """
    before = fault.before
    after = fault.after
    if before is None:
        return None
    old_tensors = _run(before, inputs)
    new_tensors = _run(after, inputs)
    old = _Names(before)
    new = _Names(after)
    agreed = 0
    for consumer in new.consumers():
        counterpart = old.counterpart(consumer)
        if counterpart is None:
            continue
        if _are_equal(old_tensors, new_tensors, consumer.outputs):
            agreed += 1
            continue
        name = _replaced(counterpart, consumer, old_tensors, new_tensors)
        if name is None and consumer.is_return:
            continue
        return _culprit(fault, old, name or counterpart.outputs[0], agreed)
    return None


def _culprit(
    fault: FaultyPass, old: _Names, name: str, agreed: int
) -> tuple[Culprit, str] | None:
    node = old.producers.get(name)
    if node is None:
        return None
    copy_name = old.own_name(name)
    value = next(value for value in node.outputs() if value.debugName() == copy_name)
    dtype = None
    if value.type().kind() == "TensorType":
        dtype = value.type().scalarType()
    culprit = Culprit(
        name,
        node.kind(),
        source_location(node),
        PASS,
        fault.step,
        fault.problem,
        None,
        (str(dtype),) if dtype else (),
        agreed=agreed,
    )
    return culprit, copy_name


@dataclass(frozen=True)
class _Consumer:
    """A node or the return of the graph, with value names of the original graph."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def is_return(self) -> bool:
        return self.kind == "prim::Return"


class _Names:
    """The nodes of a recorded graph by their names in the original graph."""

    def __init__(self, recorded: Recorded) -> None:
        self.of = recorded.name_of()
        self.copies = {name: copy_name for copy_name, name in self.of.items()}
        self.nodes = list(recorded.graph.nodes())
        self.result = recorded.graph.return_node()
        self.producers = {
            self.of[value.debugName()]: node
            for node in self.nodes
            for value in node.outputs()
        }
        self.by_first = {
            consumer.outputs[0]: consumer
            for consumer in self.consumers()
            if consumer.outputs
        }

    def own_name(self, name: str) -> str:
        return self.copies[name]

    def consumers(self) -> list[_Consumer]:
        """Every node in program order, and the return."""
        return [self._consumer(node) for node in (*self.nodes, self.result)]

    def _consumer(self, node: Node) -> _Consumer:
        return _Consumer(
            node.kind(),
            tuple(self.of[value.debugName()] for value in node.inputs()),
            tuple(self.of[value.debugName()] for value in node.outputs()),
        )

    def counterpart(self, consumer: _Consumer) -> _Consumer | None:
        """The node that computed the same value here; for the return, the return."""
        if consumer.is_return:
            return self._consumer(self.result)
        if consumer.outputs:
            return self.by_first.get(consumer.outputs[0])
        return None


def _replaced(
    former: _Consumer, current: _Consumer, old: Tensors, new: Tensors
) -> str | None:
    """The value that the consumer read before the pass, if it now reads another one that
    differs.
    """
    if len(former.inputs) != len(current.inputs):
        return None
    for before, after in zip(former.inputs, current.inputs, strict=True):
        if before in old and after in new and not _equal(old[before], new[after]):
            return before
        if before in old and after not in new and before != after:
            return before
    return None


def _are_equal(old: Tensors, new: Tensors, names: Sequence[str]) -> bool:
    """Whether these values agree; a node without a known value is ignored. The return has no value:
    its inputs are compared.
    """
    known = [name for name in names if name in old and name in new]
    return bool(names) and all(_equal(old[name], new[name]) for name in known)


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    return parity.compare_value("value", right, left, "fp32").passed


def _run(recorded: Recorded, inputs: Sequence[torch.Tensor]) -> Tensors:
    """The tensor of each top-level value when it is computed, by its name in the original graph.

    Later in-place writes do not affect it. Empty if torch cannot run the graph.
    """
    import torch

    of: Mapping[str, str] = recorded.name_of()
    copy = recorded.graph.copy()
    names = [
        of[value.debugName()]
        for value in _values(recorded.graph)
        if _is_tensor(value) and not ir.is_constant(value)
    ]
    clones = _clones(copy)
    for _ in list(copy.outputs()):
        copy.eraseOutput(0)
    for value in clones:
        copy.registerOutput(value)
    try:
        with torch.no_grad():
            results = execute_graph(copy, [tensor.clone() for tensor in inputs])
    except RuntimeError:
        return {}
    return dict(zip(names, results, strict=True))


def _is_tensor(value: Value) -> bool:
    return str(value.type().kind()) == "TensorType"


def _clones(graph: Graph) -> list[Any]:
    """Insert a clone of each tensor directly after it. Returns them in the order of `_values`."""
    ends = [*graph.nodes(), graph.return_node()]
    pairs = [(value, ends[0]) for value in graph.inputs()]
    for node, following in pairwise(ends):
        pairs += [(value, following) for value in node.outputs()]
    clones = []
    for value, following in pairs:
        if _is_tensor(value) and not ir.is_constant(value):
            none = ir.insert_constant(graph, None, following)
            clones.append(
                ir.insert(graph, "aten::clone", [value, none], following).output()
            )
    return clones


def graph_of(recorded: Recorded) -> LoweredGraph:
    """The recorded graph. Its outputs must be flat."""
    names = tuple(ir.unique_names(recorded.graph.inputs()))
    outputs = tuple(
        f"output_{index}" for index, _ in enumerate(recorded.graph.outputs())
    )
    return LoweredGraph(recorded.graph, names, outputs)
