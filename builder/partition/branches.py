"""Split a torch segment at its branches, so that each block can be partitioned separately.

Nothing is hoisted: the nodes of a block still run only under its condition. The nodes before a
branch, the condition, the two blocks and the nodes after it become graphs that one process runs in
sequence (the fused layout).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from builder.graph_types import Block, Graph, Value
from builder.lowering import LoweredGraph, ir
from builder.partition.extract import closure, extract, inputs_of
from builder.partition.naming import TensorNames
from builder.partition.scalars import takes_axis
from builder.partition.view import Step, View, block_reads, is_tensor, view


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
    seen = _view(lowered.graph)
    return [
        index
        for index, step in enumerate(seen.steps)
        if step.kind == "prim::If" and _is_reachable(seen, step)
    ]


def _view(graph: Graph) -> View:
    """A copy of the graph in which each user of a 0-d boundary tensor removes the added axis
    itself, because a separate graph for that would cost a call.
    """
    inputs = {value.debugName() for value in graph.inputs()}
    return View(
        graph,
        [
            replace(s, is_free=s.is_free or takes_axis(s.node, inputs))
            for s in view(graph).steps
        ],
    )


def _is_reachable(seen: View, step: Step) -> bool:
    needed = _free_behind(seen, step.reads)
    read = [
        *inputs_of(seen, needed),
        *(name for name in step.reads if seen.producer.get(name) not in needed),
    ]
    return all(map(is_tensor, step.node.outputs())) and all(
        seen.type_of(n).kind() == "TensorType" for n in read
    )


def _free_behind(seen: View, names: Collection[str]) -> list[int]:
    """The free nodes that compute these values, directly or indirectly."""
    makers = {seen.producer[name] for name in names if name in seen.producer}
    return closure(seen, {index for index in makers if seen.steps[index].is_free})


def take_apart(lowered: LoweredGraph, chosen: Sequence[int]) -> list[Part]:
    """The parts of the graph in execution order, split at the branches at the positions
    `chosen`.
    """
    seen = _view(lowered.graph)
    names = TensorNames(lowered)
    stages = _stages(seen, chosen)
    groups = [
        [i for i, stage in enumerate(stages) if stage == number]
        for number in range(len(chosen) + 1)
    ]
    extracted = [_ExtractedBranch(seen, names, index) for index in chosen]
    wanted = {value.debugName() for value in lowered.graph.outputs()}
    wanted.update(
        name for group in groups for name in inputs_of(seen, closure(seen, group))
    )
    wanted.update(name for branch in extracted for name in branch.read)
    parts: list[Part] = []
    for number, group in enumerate(groups):
        parts += _torch(seen, names, group, wanted)
        parts += [extracted[number].branch()] if number < len(extracted) else []
    return parts


def _stages(seen: View, chosen: Sequence[int]) -> list[int]:
    """The number of chosen branches that must run before each node; -1 for free nodes and the
    branches themselves.
    """
    rank = {index: number for number, index in enumerate(chosen, start=1)}
    behind: list[int] = []
    for index, above in enumerate(seen.parents):
        behind.append(max([rank.get(index, 0), *(behind[parent] for parent in above)]))
    return [
        -1 if step.is_free or i in rank else behind[i]
        for i, step in enumerate(seen.steps)
    ]


def _torch(
    seen: View, names: TensorNames, group: Sequence[int], wanted: Collection[str]
) -> list[LoweredGraph]:
    if not group:
        return []
    indices = closure(seen, group)
    outputs = [
        name for index in group for name in seen.steps[index].outputs if name in wanted
    ]
    return [extract(seen, indices, inputs_of(seen, indices), outputs, names)]


class _ExtractedBranch:
    """One branch while it is extracted into separate graphs."""

    def __init__(self, seen: View, names: TensorNames, index: int) -> None:
        self.seen = seen
        self.names = names
        self.index = index
        self.step = seen.steps[index]
        self.needed = _free_behind(seen, self.step.reads)
        made = {
            name for position in self.needed for name in seen.steps[position].outputs
        }
        self.read = [
            *inputs_of(seen, self.needed),
            *(name for name in self.step.reads if name not in made),
        ]

    def branch(self) -> Branch:
        yes, no = self.step.node.blocks()
        outputs = tuple(self.names[name] for name in self.step.outputs)
        indices = sorted([*self.needed, self.index])
        whole = extract(
            self.seen,
            indices,
            inputs_of(self.seen, indices),
            self.step.outputs,
            self.names,
        )
        values = {self.names[name]: name for name in self.read}
        return Branch(
            self._condition(),
            (self._block(yes, outputs), self._block(no, outputs)),
            outputs,
            whole,
            values,
        )

    def _condition(self) -> LoweredGraph:
        name = self.step.inputs[0]
        needed = _free_behind(self.seen, [name])
        graph, mapped = self._begun(needed, inputs_of(self.seen, needed))
        rest = [_constant(graph, value) for value in (None, None, False)]
        tensor = graph.appendNode(
            graph.create("aten::tensor", [mapped[name], *rest], 1)
        ).output()
        tensor.setType(torch._C.TensorType.get())
        graph.registerOutput(tensor)
        read = tuple(self.names[n] for n in inputs_of(self.seen, needed))
        return LoweredGraph(
            graph, read, ("condition",), containers=self.names.containers
        )

    def _block(self, block: Block, outputs: tuple[str, ...]) -> LoweredGraph:
        read = list(dict.fromkeys(block_reads(block)))
        needed = _free_behind(self.seen, read)
        made = {
            name for position in needed for name in self.seen.steps[position].outputs
        }
        given = list(
            dict.fromkeys(
                [
                    *inputs_of(self.seen, needed),
                    *(name for name in read if name not in made),
                ]
            )
        )
        graph, mapped = self._begun(needed, given)
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
        inputs = tuple(self.names[name] for name in given)
        return LoweredGraph(graph, inputs, outputs, containers=self.names.containers)

    def _begun(
        self, needed: Sequence[int], given: Sequence[str]
    ) -> tuple[Any, dict[str, Any]]:
        """A graph of these inputs and free nodes, and its values by their names in the segment."""
        graph: Any = torch._C.Graph()
        mapped = {name: graph.addInput() for name in given}
        for name, value in mapped.items():
            value.setType(self.seen.type_of(name))
        for index in needed:
            step = self.seen.steps[index]
            clone = graph.appendNode(
                graph.createClone(step.node, lambda value: mapped[value.debugName()])
            )
            mapped.update(zip(step.outputs, clone.outputs(), strict=True))
        return graph, mapped


def _constant(graph: Graph, value: bool | None) -> Value:
    if value is not None:
        return graph.insertConstant(value)
    node = graph.appendNode(graph.create("prim::Constant", 1))
    node.output().setType(ir.NONE)
    return node.output()
