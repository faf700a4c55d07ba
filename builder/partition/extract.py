"""Extract one segment as a separate graph."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import torch

from builder.graph_types import Graph, Value
from builder.lowering import LoweredGraph, ir
from builder.partition.boundary import TensorNames
from builder.partition.view import View, is_free, view
from builder.reachable import reachable


def closure(view: View, members: Collection[int]) -> list[int]:
    """The members and the free nodes that they read, directly or not, as sorted indices."""

    def free_parents(index: int) -> list[int]:
        return [parent for parent in view.parents[index] if view.steps[parent].is_free]

    return sorted(reachable(members, free_parents))


def inputs_of(view: View, indices: Sequence[int]) -> list[str]:
    """The values that these nodes read and do not compute, in order of first use."""
    computed = {name for index in indices for name in view.steps[index].outputs}
    inputs: dict[str, None] = {}
    for index in indices:
        for name in view.steps[index].reads:
            if name not in computed:
                inputs[name] = None
    return list(inputs)


def extract(
    view: View,
    indices: Sequence[int],
    inputs: Sequence[str],
    outputs: Sequence[str],
    names: TensorNames,
) -> LoweredGraph:
    """A LoweredGraph with clones of these nodes, and these inputs and outputs.

    Weights are shared.
    """
    graph, mapped = begin(view, indices, inputs)
    for name in outputs:
        graph.registerOutput(mapped[name])
    return LoweredGraph(
        graph,
        tuple(names[name] for name in inputs),
        tuple(names[name] for name in outputs),
        containers=names.containers,
    )


def begin(
    view: View, indices: Sequence[int], inputs: Sequence[str]
) -> tuple[Any, dict[str, Any]]:
    """A graph with these inputs and clones of these nodes, without outputs, and its values by their
    names in `view`.
    """
    graph: Any = torch._C.Graph()
    mapped: dict[str, Value] = {}
    for name in inputs:
        mapped[name] = graph.addInput()
        mapped[name].setType(view.type_of(name))
    for index in indices:
        step = view.steps[index]
        clone = graph.createClone(step.node, lambda value: mapped[value.debugName()])
        graph.appendNode(clone)
        mapped.update(zip(step.outputs, clone.outputs(), strict=True))
    return graph, mapped


def subgraph(
    lowered: LoweredGraph, inputs: Collection[str], outputs: Sequence[str]
) -> tuple[LoweredGraph, tuple[str, ...]]:
    """The nodes that compute the values `outputs` from the values `inputs` as a graph, and the
    names of the values that they read, in the order of its inputs. Values are named as in the
    original graph, whose inputs count as `inputs`.
    """
    graph_view = view(lowered.graph)
    indices = _between(graph_view, inputs, outputs)
    names = inputs_of(graph_view, indices)
    part = extract(graph_view, indices, names, outputs, TensorNames(lowered))
    return part, tuple(names)


def values_between(
    lowered: LoweredGraph, inputs: Collection[str], outputs: Sequence[str]
) -> list[str]:
    """The names of the values from nodes of this subgraph that compute tensors."""
    graph_view = view(lowered.graph)
    steps = (graph_view.steps[index] for index in _between(graph_view, inputs, outputs))
    return [name for step in steps if not step.is_free for name in step.outputs]


def _between(
    graph_view: View, inputs: Collection[str], outputs: Sequence[str]
) -> list[int]:
    """The indices of the nodes that compute these outputs from these inputs."""
    inside = set(inputs) - set(outputs)

    def reads(name: str) -> list[str]:
        return [other for other in graph_view.reads(name) if other not in inside]

    producers = map(graph_view.producer.get, reachable(outputs, reads))
    return sorted({index for index in producers if index is not None})


def values_behind(lowered: LoweredGraph, outputs: Sequence[str]) -> set[str]:
    """The names of these values and of all values that they depend on."""
    return set(reachable(outputs, view(lowered.graph).reads))


def computing_nodes(lowered: LoweredGraph) -> int:
    """The number of nodes that compute tensors, without constants, sizes and lists."""
    return sum(not step.is_free for step in view(lowered.graph).steps)


def with_own_outputs(lowered: LoweredGraph) -> LoweredGraph:
    """A copy of the graph in which a separate work node computes every output: an input that is
    passed through, a constant and a repeated value are cloned.
    """
    graph = lowered.graph.copy()
    inputs = {value.debugName() for value in graph.inputs()}
    seen: set[str] = set()
    for position, value in enumerate(list(graph.outputs())):
        name = value.debugName()
        if name in inputs or name in seen or is_free(value.node()):
            graph.return_node().replaceInput(position, _cloned(graph, value))
        seen.add(name)
    return replace(lowered, graph=graph, as_written="")


def _cloned(graph: Graph, value: Value) -> Value:
    nothing = graph.create("prim::Constant", 1)
    nothing.output().setType(ir.NONE)
    clone = graph.create("aten::clone", [value, nothing.output()], 1)
    clone.output().setType(value.type())
    for node in (nothing, clone):
        node.insertBefore(graph.return_node())
    return clone.output()
