"""A lowered graph as the partition sees it: work, and what is recomputed wherever it is needed.

torch answers a question about a node in microseconds, so every node is examined once, and all
stages read the answers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from builder.conversion import NO_SCHEMA, key_of
from builder.graph_types import Block, Graph, Node, Value
from builder.lowering import ir


@dataclass(frozen=True, slots=True)
class Step:
    """One top-level node: `key` is the converters' registry's, `reads` are the values that it reads
    from outside, those inside its blocks included; `is_free`: each reader recomputes it
    (see is_free).
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
    kind, schema = node.kind(), node.schema()
    inputs = tuple(value.debugName() for value in node.inputs())
    outputs = list(node.outputs())
    blocks = ir.blocks_of(node)
    inner = tuple(name for block in blocks for name in block_reads(block))
    free = kind == "prim::Constant" or not (
        any(map(is_tensor, outputs)) or (blocks and not outputs)
    )
    key = kind if schema == NO_SCHEMA else key_of(schema)
    return Step(
        node, kind, key, inputs, tuple(value.debugName() for value in outputs), inputs + inner, free
    )


@dataclass
class View:
    """`steps`: every node; those that are not free compute tensors: the work. All others
    (constants, sizes and numbers, lists of tensors) are cloned into every segment that reads them,
    so that only tensors cross.
    """

    graph: Any
    steps: list[Step] = field(default_factory=list)

    @cached_property
    def producer(self) -> dict[str, int]:
        """The index of the node that makes a value; graph inputs are not in it."""
        return {name: index for index, step in enumerate(self.steps) for name in step.outputs}

    @cached_property
    def parents(self) -> list[list[int]]:
        """For each node the indices of those that it reads of, free ones too."""
        producer = self.producer
        return [[producer[name] for name in step.reads if name in producer] for step in self.steps]

    @cached_property
    def _inputs(self) -> dict[str, Any]:
        return {value.debugName(): value for value in self.graph.inputs()}

    def type_of(self, name: str) -> Any:
        """The type of a value."""
        index = self.producer.get(name)
        if index is None:
            return self._inputs[name].type()
        return list(self.steps[index].node.outputs())[self.steps[index].outputs.index(name)].type()


def view(graph: Graph) -> View:
    """Read the graph once."""
    return View(graph, steps(graph))


def reads(node: Node) -> Iterator[str]:
    """The names of all values that the node reads from outside, those inside its blocks
    included.
    """
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
    yield from (v.debugName() for v in block.outputs() if v.debugName() not in inside)


def is_free(node: Node) -> bool:
    """Whether the node is recomputed by each reader: it makes no tensor, or only a list of tensors
    that are views.

    So is a branch that makes a number (`a and b`): neither can cross.
    """
    return _step(node).is_free


def is_tensor(value: Value) -> bool:
    """Whether the value is one tensor (optional or with a known shape too), not a list of
    tensors.
    """
    kind = value.type().kind()
    return bool(
        kind == "TensorType"
        or (kind == "OptionalType" and value.type().getElementType().kind() == "TensorType")
    )
