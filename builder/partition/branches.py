"""Split a torch segment at its branches, so that each block can be partitioned separately.

Nothing is hoisted: the nodes of a block still run only under its condition. The nodes before a
branch, the condition, the two blocks and the nodes after it become graphs that one process runs in
sequence (the fused layout).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from builder.graph_types import Block, Graph, Value
from builder.lowering import LoweredGraph, ir
from builder.partition.boundary import TensorNames, takes_axis
from builder.partition.extract import begin, closure, extract, inputs_of
from builder.partition.view import Step, View, block_reads, view


@dataclass(frozen=True)
class Branch:
    """A branch of a torch segment. `condition` computes one 0-d bool tensor; the first of `blocks`
    runs if it is true, else the second. All read tensors of the segment by name, and each block
    computes the tensors `outputs`. `whole` is the branch as one graph. `values` maps the names of
    read tensors to the segment's values.
    """

    condition: LoweredGraph
    blocks: tuple[LoweredGraph, LoweredGraph]
    outputs: tuple[str, ...]
    whole: LoweredGraph
    values: Mapping[str, str]


Part = LoweredGraph | Branch


def branches(lowered: LoweredGraph) -> list[int]:
    """The positions of the top-level branches that can be split: all of their inputs and outputs
    are tensors, or numbers that can be recomputed from tensors.
    """
    graph_view = _view(lowered.graph)
    return [
        index
        for index, step in enumerate(graph_view.steps)
        if step.kind == "prim::If" and _is_reachable(graph_view, step)
    ]


def _view(graph: Graph) -> View:
    """A copy of the graph in which each user of a 0-d boundary tensor removes the added axis
    itself, because a separate graph for that would cost a call.
    """
    inputs = {value.debugName() for value in graph.inputs()}
    return View(
        graph,
        [
            replace(step, is_free=step.is_free or takes_axis(step.node, inputs))
            for step in view(graph).steps
        ],
    )


def _is_reachable(graph_view: View, step: Step) -> bool:
    results = [value for block in step.node.blocks() for value in block.outputs()]
    if not all(value.type().kind() == "TensorType" for value in results):
        return False  # None in one block, for example
    needed = _free_behind(graph_view, step.reads)
    inputs = _inputs_with(graph_view, needed, step.reads)
    return all(graph_view.type_of(name).kind() == "TensorType" for name in inputs)


def _free_behind(graph_view: View, names: Collection[str]) -> list[int]:
    """The free nodes that compute these values, directly or indirectly."""
    producers = {
        graph_view.producer[name] for name in names if name in graph_view.producer
    }
    return closure(
        graph_view, {index for index in producers if graph_view.steps[index].is_free}
    )


def _inputs_with(
    graph_view: View, needed: Sequence[int], names: Iterable[str]
) -> list[str]:
    """The values that the needed nodes read from outside, and those of `names` that these nodes do
    not compute.
    """
    outside = [name for name in names if graph_view.producer.get(name) not in needed]
    return list(dict.fromkeys([*inputs_of(graph_view, needed), *outside]))


def take_apart(lowered: LoweredGraph, chosen: Sequence[int]) -> list[Part]:
    """The parts of the graph in execution order, split at the branches at the positions
    `chosen`.
    """
    graph_view = _view(lowered.graph)
    names = TensorNames(lowered)
    stages = _stages(graph_view, chosen)
    groups = [
        [i for i, stage in enumerate(stages) if stage == number]
        for number in range(len(chosen) + 1)
    ]
    extracted = [_ExtractedBranch(graph_view, names, index) for index in chosen]
    crossing = {value.debugName() for value in lowered.graph.outputs()}
    crossing.update(
        name
        for group in groups
        for name in inputs_of(graph_view, closure(graph_view, group))
    )
    crossing.update(name for branch in extracted for name in branch.inputs)
    parts: list[Part] = []
    for number, group in enumerate(groups):
        parts += _torch(graph_view, names, group, crossing)
        if number < len(extracted):
            parts.append(extracted[number].branch())
    return parts


def _stages(graph_view: View, chosen: Sequence[int]) -> list[int]:
    """The number of chosen branches that must run before each node; -1 for free nodes and the
    branches themselves.
    """
    rank = {index: number for number, index in enumerate(chosen, start=1)}
    stage_of_node: list[int] = []
    for index, parents in enumerate(graph_view.parents):
        stage_of_node.append(
            max([rank.get(index, 0), *(stage_of_node[parent] for parent in parents)])
        )
    for index, step in enumerate(graph_view.steps):
        if step.is_free or index in rank:
            stage_of_node[index] = -1
    return stage_of_node


def _torch(
    graph_view: View,
    names: TensorNames,
    group: Sequence[int],
    crossing: Collection[str],
) -> list[LoweredGraph]:
    if not group:
        return []
    indices = closure(graph_view, group)
    outputs = [
        name
        for index in group
        for name in graph_view.steps[index].outputs
        if name in crossing
    ]
    return [
        extract(graph_view, indices, inputs_of(graph_view, indices), outputs, names)
    ]


class _ExtractedBranch:
    """One branch while it is extracted into separate graphs."""

    def __init__(self, graph_view: View, names: TensorNames, index: int) -> None:
        self.graph_view = graph_view
        self.names = names
        self.index = index
        self.step = graph_view.steps[index]
        self.needed = _free_behind(graph_view, self.step.reads)
        self.inputs = _inputs_with(graph_view, self.needed, self.step.reads)

    def branch(self) -> Branch:
        yes, no = self.step.node.blocks()
        outputs = tuple(self.names[name] for name in self.step.outputs)
        indices = sorted([*self.needed, self.index])
        whole = extract(
            self.graph_view,
            indices,
            inputs_of(self.graph_view, indices),
            self.step.outputs,
            self.names,
        )
        values = {self.names[name]: name for name in self.inputs}
        return Branch(
            self._condition(),
            (self._block(yes, outputs), self._block(no, outputs)),
            outputs,
            whole,
            values,
        )

    def _condition(self) -> LoweredGraph:
        name = self.step.inputs[0]
        needed = _free_behind(self.graph_view, [name])
        inputs = inputs_of(self.graph_view, needed)
        graph, mapped = begin(self.graph_view, needed, inputs)
        options = [_constant(graph, value) for value in (None, None, False)]
        tensor = graph.appendNode(
            graph.create("aten::tensor", [mapped[name], *options], 1)
        ).output()
        tensor.setType(torch._C.TensorType.get())
        graph.registerOutput(tensor)
        return LoweredGraph(
            graph,
            tuple(self.names[name] for name in inputs),
            ("condition",),
            containers=self.names.containers,
        )

    def _block(self, block: Block, outputs: tuple[str, ...]) -> LoweredGraph:
        names = list(dict.fromkeys(block_reads(block)))
        needed = _free_behind(self.graph_view, names)
        inputs = _inputs_with(self.graph_view, needed, names)
        graph, mapped = begin(self.graph_view, needed, inputs)
        for node in block.nodes():
            clone = graph.appendNode(
                graph.createClone(node, lambda value: mapped[value.debugName()])
            )
            mapped.update(
                (old.debugName(), new)
                for old, new in zip(node.outputs(), clone.outputs(), strict=True)
            )
        for value in block.outputs():
            graph.registerOutput(mapped[value.debugName()])
        return LoweredGraph(
            graph,
            tuple(self.names[name] for name in inputs),
            outputs,
            containers=self.names.containers,
        )


def _constant(graph: Graph, value: bool | None) -> Value:
    if value is not None:
        return graph.insertConstant(value)
    node = graph.appendNode(graph.create("prim::Constant", 1))
    node.output().setType(ir.NONE)
    return node.output()
