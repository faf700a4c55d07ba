"""The partition's view of a lowered graph: work nodes, and free nodes that each user recomputes.

A query of a node in torch takes microseconds, so every node is examined once, and all stages use
the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from builder.conversion import NO_SCHEMA, key_of
from builder.graph_types import Block, Graph, Node, Value
from builder.lowering import ir


@dataclass(frozen=True, slots=True)
class Step:
    """One top-level node. `key` is its key in the converter registry. `reads` are the outside
    values that it reads, including reads inside its blocks. `is_free`: each user recomputes it (see
    is_free).
    """

    node: Any
    kind: str
    key: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reads: tuple[str, ...]
    is_free: bool


def steps(graph: Graph) -> list[Step]:
    """Every top-level node in program order; linear in nodes and edges."""
    return [_step(node) for node in graph.nodes()]


def _step(node: Node) -> Step:
    kind = node.kind()
    schema = node.schema()
    inputs = tuple(value.debugName() for value in node.inputs())
    outputs = list(node.outputs())
    blocks = ir.blocks_of(node)
    inner = tuple(name for block in blocks for name in block_reads(block))
    has_effects = bool(blocks) and not outputs
    free = kind == "prim::Constant" or not (any(map(is_tensor, outputs)) or has_effects)
    key = kind if schema == NO_SCHEMA else key_of(schema)
    return Step(
        node,
        kind,
        key,
        inputs,
        tuple(value.debugName() for value in outputs),
        inputs + inner,
        free,
    )


@dataclass
class View:
    """`steps`: every node. Nodes that are not free compute tensors (work nodes). Free nodes
    (constants, sizes and numbers, lists of tensors) are cloned into every segment that reads them,
    so that boundary values are tensors.
    """

    graph: Any
    steps: list[Step] = field(default_factory=list)

    @cached_property
    def producer(self) -> dict[str, int]:
        """The index of the node that computes a value, without graph inputs."""
        return {
            name: index
            for index, step in enumerate(self.steps)
            for name in step.outputs
        }

    @cached_property
    def parents(self) -> list[list[int]]:
        """For each node the indices of the nodes that it reads, including free nodes."""
        producer = self.producer
        return [
            [producer[name] for name in step.reads if name in producer]
            for step in self.steps
        ]

    def reads(self, name: str) -> Sequence[str]:
        """The values that the node of a value reads; none for an input of the graph."""
        index = self.producer.get(name)
        return () if index is None else self.steps[index].reads

    @cached_property
    def _inputs(self) -> dict[str, Any]:
        return {value.debugName(): value for value in self.graph.inputs()}

    def type_of(self, name: str) -> Any:
        """The type of a value."""
        index = self.producer.get(name)
        if index is None:
            return self._inputs[name].type()
        step = self.steps[index]
        return step.node.outputsAt(step.outputs.index(name)).type()


def view(graph: Graph) -> View:
    """Read the graph once."""
    return View(graph, steps(graph))


def reads(node: Node) -> Iterator[str]:
    """The names of all outside values that the node reads, including reads inside its blocks."""
    for value in node.inputs():
        yield value.debugName()
    for block in ir.blocks_of(node):
        yield from block_reads(block)


def block_reads(block: Block) -> Iterator[str]:
    """The names of all values that the block reads from outside."""
    inside = {value.debugName() for value in block.inputs()}
    for node in block.nodes():
        yield from (name for name in reads(node) if name not in inside)
        inside.update(value.debugName() for value in node.outputs())
    yield from (
        value.debugName()
        for value in block.outputs()
        if value.debugName() not in inside
    )


def is_free(node: Node) -> bool:
    """Whether each user recomputes the node: it computes no tensor, or only a list of tensor views.

    This includes a branch that computes a number (`a and b`). Neither can be a boundary value.
    """
    return _step(node).is_free


def is_tensor(value: Value) -> bool:
    """Whether the value is one tensor (possibly Optional or with a known shape), not a list of
    tensors.
    """
    kind = value.type().kind()
    if kind == "OptionalType":
        kind = value.type().getElementType().kind()
    return bool(kind == "TensorType")
