"""A lowered graph as the partition sees it: work, and what is recomputed wherever it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from builder.lowering import ir


@dataclass
class View:
    """`work`: nodes that compute tensors, in program order (their index in the graph); `parents` as positions in
    `work`. All other nodes are free: constants, sizes and numbers, and lists of tensors. They are cloned into every
    segment that reads them, so that only tensors cross."""

    graph: Any
    nodes: list[Any] = field(default_factory=list)
    work: list[int] = field(default_factory=list)
    parents: list[list[int]] = field(default_factory=list)
    producer: dict[str, int] = field(default_factory=dict)
    """The index in the graph of the node that makes a value; graph inputs are not in it."""
    types: dict[str, Any] = field(default_factory=dict)
    works: set[int] = field(default_factory=set)
    """`work` as a set."""


def view(graph: Any) -> View:
    """Read the graph once; linear in its nodes and edges."""
    result = View(graph, list(graph.nodes()))
    result.types.update((value.debugName(), value.type()) for value in graph.inputs())
    position: dict[int, int] = {}
    behind: list[frozenset[int]] = []
    for index, node in enumerate(result.nodes):
        sources = frozenset().union(*(behind[result.producer[v]] for v in reads(node) if v in result.producer))
        if is_free(node):
            behind.append(sources)
        else:
            position[index] = len(result.work)
            behind.append(frozenset((position[index],)))
            result.work.append(index)
            result.works.add(index)
            result.parents.append(sorted(sources))
        result.producer.update((value.debugName(), index) for value in node.outputs())
        result.types.update((value.debugName(), value.type()) for value in node.outputs())
    return result


def reads(node: Any) -> Iterator[str]:
    """The names of all values that the node reads from outside, those inside its blocks included."""
    for value in node.inputs():
        yield value.debugName()
    for block in ir.blocks_of(node):
        yield from _block_reads(block)


def _block_reads(block: Any) -> Iterator[str]:
    inside = {value.debugName() for value in block.inputs()}
    for node in block.nodes():
        yield from (name for name in reads(node) if name not in inside)
        inside.update(value.debugName() for value in node.outputs())
    yield from (v.debugName() for v in block.outputs() if v.debugName() not in inside)


def is_free(node: Any) -> bool:
    """Whether the node is recomputed by each reader: it makes no tensor, or only a list of tensors that are views."""
    if node.kind() == "prim::Constant":
        return True
    if ir.blocks_of(node):
        return False
    return not any(is_tensor(value) for value in node.outputs())


def is_tensor(value: Any) -> bool:
    """Whether the value is one tensor (optional or with a known shape too), not a list of tensors."""
    kind = value.type().kind()
    return bool(
        kind == "TensorType" or (kind == "OptionalType" and value.type().getElementType().kind() == "TensorType")
    )
