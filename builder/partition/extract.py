"""One segment as a graph of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from builder.lowering import LoweredGraph
from builder.partition.naming import TensorNames
from builder.partition.view import View, is_free


def closure(view: View, members: Collection[int]) -> list[int]:
    """The members and the free nodes that they read, directly or not, as sorted indices."""
    needed, stack = set(members), list(members)
    while stack:
        for index in view.parents[stack.pop()]:
            if index not in needed and view.steps[index].is_free:
                needed.add(index)
                stack.append(index)
    return sorted(needed)


def inputs_of(view: View, indices: Sequence[int]) -> list[str]:
    """The values that these nodes read and none of them makes, in order of first reading."""
    made = {name for index in indices for name in view.steps[index].outputs}
    return list(
        dict.fromkeys(n for index in indices for n in view.steps[index].reads if n not in made)
    )


def extract(
    view: View,
    indices: Sequence[int],
    inputs: Sequence[str],
    outputs: Sequence[str],
    names: TensorNames,
) -> LoweredGraph:
    """A LoweredGraph of these nodes, cloned, from and to these values. Weights are shared."""
    graph: Any = torch._C.Graph()
    mapped: dict[str, Any] = {}
    for name in inputs:
        mapped[name] = graph.addInput()
        mapped[name].setType(view.type_of(name))
    for index in indices:
        step = view.steps[index]
        clone = graph.createClone(step.node, lambda value: mapped[value.debugName()])
        graph.appendNode(clone)
        mapped.update(zip(step.outputs, clone.outputs(), strict=True))
    for name in outputs:
        graph.registerOutput(mapped[name])
    inner = tuple(names[n] for n in inputs), tuple(names[n] for n in outputs)
    return LoweredGraph(graph, *inner, containers=names.containers)


def with_own_outputs(lowered: LoweredGraph) -> LoweredGraph:
    """The graph with every output made by a work node of its own: an input that is passed through,
    a constant and a repeated value are cloned. The given graph is not changed.
    """
    graph = lowered.graph.copy()
    inputs = {value.debugName() for value in graph.inputs()}
    seen: set[str] = set()
    for position, value in enumerate(list(graph.outputs())):
        name = value.debugName()
        if name in inputs or name in seen or is_free(value.node()):
            graph.return_node().replaceInput(position, _cloned(graph, value))
        seen.add(name)
    return LoweredGraph(graph, lowered.inputs, lowered.outputs, lowered.trace, lowered.containers)


def _cloned(graph: Any, value: Any) -> Any:
    nothing = graph.create("prim::Constant", 1)
    nothing.output().setType(torch._C.NoneType.get())
    clone = graph.create("aten::clone", [value, nothing.output()], 1)
    clone.output().setType(value.type())
    for node in (nothing, clone):
        node.insertBefore(graph.return_node())
    return clone.output()
