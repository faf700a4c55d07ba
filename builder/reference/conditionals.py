"""Conditionals: IIfConditional's output layers and the layers of both branches, as one step that
runs one branch.

A branch contains the layers that only its outputs need. Layers that both branches need are
evaluated before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from builder.engine import ITensor
from builder.reference.loops import boundaries, inputs_from_outside, readers_of
from builder.reference.node import Node, Values

# an input layer is treated like any other, and may be used by both branches
FOLDED = ("CONDITION", "CONDITIONAL_OUTPUT")
# the inputs of an output layer: the value if true, the value if false
BRANCHES = (0, 1)


def fold(
    steps: Sequence[Any], targets: Sequence[ITensor], region: Callable[..., Any]
) -> list[Any]:
    """Replace every outermost conditional of the steps by one ConditionalStep. `region` plans its
    branches.
    """
    boundary_steps = [step for step in steps if step.kind in FOLDED]
    if_steps = [Conditional(boundary) for boundary in boundaries(boundary_steps)]
    if not if_steps:
        return list(steps)
    folded = {
        node for if_step in if_steps for node in (*if_step.outputs_, if_step.condition)
    }
    remaining = [*(step for step in steps if step not in folded), *if_steps]
    readers = readers_of(remaining)
    producer = {tensor: step for step in remaining for tensor in step.outputs}
    protected = set(targets)
    branches = {
        if_step: [
            _exclusive(if_step, branch, readers, producer, protected)
            for branch in BRANCHES
        ]
        for if_step in if_steps
    }
    inner = {step for parts in branches.values() for part in parts for step in part}
    outermost = [if_step for if_step in if_steps if if_step not in inner]
    for if_step in outermost:
        if_step.plan([_unfold(part, steps) for part in branches[if_step]], region)
    return [step for step in remaining if step not in inner]


def _exclusive(
    if_step: Conditional,
    branch: int,
    readers: Any,
    producer: dict[ITensor, Node],
    protected: set[ITensor],
) -> list[Any]:
    """The steps that only this branch of the conditional needs, searched backwards from its
    outputs.
    """
    feeds = set(if_step.results(branch))
    exclusive: dict[Any, None] = {}
    pending = [producer[tensor] for tensor in feeds if tensor in producer]
    while pending:
        step = pending.pop()
        if step not in exclusive and all(
            _only_here(tensor, if_step, feeds, branch, readers, exclusive, protected)
            for tensor in step.outputs
        ):
            exclusive[step] = None
            pending.extend(
                producer[tensor] for tensor in step.inputs if tensor in producer
            )
    return list(exclusive)


def _only_here(
    tensor: ITensor,
    if_step: Conditional,
    feeds: set[ITensor],
    branch: int,
    readers: Any,
    exclusive: dict[Conditional | Node, None] | dict[Node, None],
    protected: set[ITensor],
) -> bool:
    """Whether only exclusive steps, or this branch of the conditional, read the tensor."""
    if tensor in protected or tensor is if_step.flag:
        return False
    if tensor in if_step.results(1 - branch):
        return False
    return all(
        reader in exclusive or (reader is if_step and tensor in feeds)
        for reader in readers[tensor]
    )


def _unfold(part: Sequence[Conditional | Node], steps: Sequence[Node]) -> list[Any]:
    """The part with inner conditionals expanded to layers, because the branch's own region folds
    them.
    """
    inner = {
        node
        for step in part
        if isinstance(step, Conditional)
        for node in (*step.outputs_, step.condition)
    }
    members = inner | set(part)
    return [step for step in steps if step in members]


class Conditional:
    """One conditional. Evaluates only the branch that its condition selects."""

    kind = "CONDITIONAL"

    def __init__(self, boundary: Sequence[Node]) -> None:
        (self.condition,) = (node for node in boundary if node.kind == "CONDITION")
        self.outputs_ = [node for node in boundary if node.kind == "CONDITIONAL_OUTPUT"]
        self.flag = self.condition.inputs[0]
        self.outputs = tuple(
            tensor for node in self.outputs_ for tensor in node.outputs
        )
        self.inputs: tuple[Any, ...] = (self.flag, *self.results(0), *self.results(1))
        self.error = self.condition.error
        self.regions: list[Any] = []

    def results(self, branch: int) -> list[Any]:
        """The input of each output layer from one branch."""
        return [node.inputs[branch] for node in self.outputs_]

    def plan(self, branches: Sequence[list[Node]], region: Callable[..., Any]) -> None:
        """Take over the steps of the branches. Tensors that they read from outside become inputs of
        this step.
        """
        steps = [step for part in branches for step in part]
        self.inputs = inputs_from_outside(steps, self.inputs)
        self.regions = [
            region(list(part), self.results(branch))
            for branch, part in zip(BRANCHES, branches, strict=True)
        ]

    def evaluate(self, values: Values) -> None:
        """Compute the outputs in `values`: from the first branch if the condition is true, else
        from the second.
        """
        branch = 0 if bool(values[self.flag]) else 1
        frame = {tensor: values[tensor] for tensor in self.inputs}
        self.regions[branch].evaluate(frame)
        for node in self.outputs_:
            node.put(values, frame[node.inputs[branch]])
