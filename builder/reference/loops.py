"""Loops: ILoop's boundary layers and everything between them, as one step.

A loop contains the layers that depend on its recurrences or iterators. The others are evaluated
once, outside.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from builder.errors import NetworkEvaluationError
from builder.reachable import reachable
from builder.reference.dtypes import torch_dtype
from builder.reference.node import Node, Values

LOOP_KINDS = ("TRIP_LIMIT", "RECURRENCE", "ITERATOR", "LOOP_OUTPUT")
CONDITIONAL_KINDS = ("CONDITION", "CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT")


def fold(nodes: Sequence[Node], region: Callable[..., Any]) -> list[Any]:
    """Replace every outermost loop of the nodes by one LoopStep. `region` plans a loop's body."""
    units = boundaries(nodes)
    all_loops = [unit for unit in units if unit[0].kind in LOOP_KINDS]
    if not all_loops:
        return list(nodes)
    readers = readers_of(nodes)
    unit_of = {node: unit for unit in units for node in unit}
    members = {id(unit): _members(unit, readers, unit_of) for unit in all_loops}
    outermost = []
    for unit in all_loops:
        others = (loop for loop in all_loops if loop is not unit)
        if not any(unit[0] in members[id(loop)] for loop in others):
            outermost.append(unit)
    inside = {node for unit in outermost for node in members[id(unit)]}
    steps = [
        LoopStep(unit, [node for node in nodes if node in members[id(unit)]], region)
        for unit in outermost
    ]
    return [node for node in nodes if node not in inside] + steps


def boundaries(nodes: Iterable[Node]) -> list[list[Node]]:
    """The boundary layers of each loop and of each conditional."""
    units: dict[Any, list[Node]] = defaultdict(list)
    for node in nodes:
        if node.kind in LOOP_KINDS:
            units[node.layer.loop].append(node)
        elif node.kind in CONDITIONAL_KINDS:
            units[node.layer.conditional].append(node)
    return list(units.values())


def readers_of(steps: Iterable[Node]) -> dict[Any, list[Any]]:
    """The steps that read each tensor."""
    readers: dict[Any, list[Any]] = defaultdict(list)
    for step in steps:
        for tensor in step.inputs:
            if tensor is not None:
                readers[tensor].append(step)
    return readers


def _members(
    unit: list[Node], readers: dict[Any, list[Node]], unit_of: dict[Node, list[Node]]
) -> set[Node]:
    """The loop's boundary layers and all layers that depend on its recurrences and iterators. Inner
    loops are included as a whole.
    """
    own = set(unit)

    def users(node: Node) -> Iterator[Node]:
        for reader in (user for tensor in node.outputs for user in readers[tensor]):
            yield from (n for n in unit_of.get(reader, [reader]) if n not in own)

    starts = [node for node in unit if node.kind in ("RECURRENCE", "ITERATOR")]
    return own.union(reachable(starts, users))


def inputs_from_outside(
    steps: Sequence[Any], first: Sequence[Any] = ()
) -> tuple[Any, ...]:
    """The tensors `first`, and those that the steps read, without those that the steps compute."""
    computed = {tensor for step in steps for tensor in step.outputs}
    inputs = dict.fromkeys(first)
    for step in steps:
        inputs.update(dict.fromkeys(step.inputs))
    return tuple(
        tensor for tensor in inputs if tensor is not None and tensor not in computed
    )


class LoopStep:
    """One loop: runs its body until the trip count is reached or the condition is false."""

    kind = "LOOP"

    def __init__(
        self, boundary: list[Node], members: list[Node], region: Callable[..., Any]
    ) -> None:
        self.by_kind = {
            kind: [node for node in boundary if node.kind == kind]
            for kind in LOOP_KINDS
        }
        limits = {
            node.layer.kind.name: node.inputs[0] for node in self.by_kind["TRIP_LIMIT"]
        }
        self.count = limits.get("COUNT")
        self.condition = limits.get("WHILE")
        self.inputs = inputs_from_outside(members)
        ends = self.by_kind["LOOP_OUTPUT"]
        self.outputs = tuple(tensor for node in ends for tensor in node.outputs)
        self.error: Callable[[str], NetworkEvaluationError] = boundary[0].error
        body = [node for node in members if node not in set(boundary)]
        # The results of one iteration: the recurrences' next values, and the elements of the
        # outputs.
        results = [node.inputs[1] for node in self.by_kind["RECURRENCE"]]
        results += [node.inputs[0] for node in ends]
        self.body = region(body, results)
        self.continues = None
        if self.condition is not None:
            self.continues = region(body, [self.condition])

    def evaluate(self, values: Values) -> None:
        """Compute the loop's outputs in `values`. A recurrence's last value is that after the final
        iteration.
        """
        outer = {tensor: values[tensor] for tensor in self.inputs}
        limit = None
        if self.count is not None:
            limit = int(values[self.count])
        state = self._start(outer)
        collected: dict[Node, list[Tensor]] = {
            node: [] for node in self.by_kind["LOOP_OUTPUT"]
        }
        iteration = 0
        while (limit is None or iteration < limit) and self._continues(
            {**outer, **state}
        ):
            frame = self._iterate({**outer, **state}, iteration, limit)
            for node, parts in collected.items():
                parts.append(frame[node.inputs[0]])
            state = self._next(frame)
            iteration += 1
        for node, parts in collected.items():
            node.put(values, self._output(node, parts, outer, state))

    def _start(self, outer: Values) -> Values:
        state: Values = {}
        for node in self.by_kind["RECURRENCE"]:
            node.put(state, outer[node.inputs[0]])
        return state

    def _continues(self, frame: Values) -> bool:
        if self.continues is None:
            return True
        self.continues.evaluate(frame)
        return bool(frame[self.condition])

    def _iterate(self, frame: Values, iteration: int, limit: int | None) -> Values:
        """The values of one iteration, including iterators. A reverse iterator counts down from the
        trip count.
        """
        for node in self.by_kind["ITERATOR"]:
            source = frame[node.inputs[0]]
            axis = node.layer.axis
            index = iteration
            if node.layer.reverse and limit is not None:
                index = limit - 1 - iteration
            if index >= source.shape[axis]:
                raise node.error(
                    f"iteration {iteration} reads index {index} of an axis of {source.shape[axis]}"
                )
            node.put(frame, source.select(axis, index))
        self.body.evaluate(frame)
        return frame

    def _next(self, frame: Values) -> Values:
        state: Values = {}
        for node in self.by_kind["RECURRENCE"]:
            node.put(state, frame[node.inputs[1]])
        return state

    def _output(
        self, node: Node, parts: list[Tensor], outer: Values, state: Values
    ) -> Tensor:
        kind = node.layer.kind.name
        if kind == "LAST_VALUE":
            if node.inputs[0] not in state:
                raise node.error("a last value must be the value of a recurrence layer")
            return state[node.inputs[0]]
        length = int(outer[node.inputs[1]])
        if len(parts) > length:
            raise node.error(
                f"{len(parts)} iterations do not fit the concatenation length {length}"
            )
        sample = parts[0] if parts else self._sample(node, outer, state)
        if kind == "REVERSE":
            parts = parts[::-1]
        filled = [*parts, *[_undefined(sample)] * (length - len(parts))]
        axis = node.layer.axis
        if filled:
            return torch.stack(filled, axis)
        return sample.unsqueeze(axis).narrow(axis, 0, 0)

    def _sample(self, node: Node, outer: Values, state: Values) -> Tensor:
        """A value with the shape of what an iteration would add, if there was no iteration.

        The body is evaluated only for a dynamic shape: an iteration that does not run may read
        beyond an axis or divide by 0.
        """
        like = node.layer.get_input(0)
        if -1 not in tuple(like.shape):
            return torch.zeros(tuple(like.shape), dtype=torch_dtype(like.dtype))
        frame = {**outer, **state}
        for iterator in self.by_kind["ITERATOR"]:
            source = frame[iterator.inputs[0]]
            axis = iterator.layer.axis
            shape = [size for i, size in enumerate(source.shape) if i != axis]
            iterator.put(frame, source.new_zeros(shape))
        self.body.evaluate(frame)
        return frame[node.inputs[0]]


def _undefined(like: Tensor) -> Tensor:
    """NaN for values that TensorRT does not define (fewer iterations than the concatenation
    length), so that any use is detected.
    """
    if like.is_floating_point():
        return torch.full_like(like, torch.nan)
    return torch.zeros_like(like)
