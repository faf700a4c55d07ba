"""Regions: layers in evaluation order. Each loop and each conditional is one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from torch import Tensor

from builder.engine import ITensor
from builder.errors import NetworkEvaluationError
from builder.reference import conditionals, loops
from builder.reference.node import Node, Values


class Step(Protocol):
    """A step of a region: a layer, a whole loop, or a whole conditional."""

    kind: str

    @property
    def inputs(self) -> tuple[Any, ...]: ...

    @property
    def outputs(self) -> tuple[Any, ...]: ...

    def evaluate(self, values: Values) -> None: ...

    def error(self, message: str) -> NetworkEvaluationError: ...


class Region:
    """The steps that the target tensors need, and the assertions. Other steps are dead code, which
    TensorRT also removes.

    Tensors that are only `watched` are also computed and kept. They do not prevent a step from
    becoming part of a conditional's branch.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        targets: Sequence[ITensor],
        watched: Iterable[Any] = (),
    ) -> None:
        steps: list[Step] = list(loops.fold(nodes, Region))
        steps = conditionals.fold(steps, targets, Region)
        protected = {*targets, *watched}
        self.steps = ordered(steps, protected)
        last_use = {}
        for i, step in enumerate(self.steps):
            for tensor in (*step.outputs, *step.inputs):
                if tensor not in protected:
                    last_use[tensor] = i
        self.dropped: list[list[Any]] = [[] for _ in self.steps]
        for tensor, i in last_use.items():
            self.dropped[i].append(tensor)

    def evaluate(
        self,
        values: Values,
        replaced: Mapping[str, Tensor] | None = None,
        evaluated: dict[str, Tensor] | None = None,
    ) -> None:
        """Compute the target tensors in `values`. Other values are removed after their last use.

        A value of `replaced`, by name, replaces the computed one, which goes to `evaluated`.
        """
        for step, dropped in zip(self.steps, self.dropped, strict=True):
            step.evaluate(values)
            if replaced and evaluated is not None:
                _replace(values, step.outputs, replaced, evaluated)
            for tensor in dropped:
                values.pop(tensor, None)


def _replace(
    values: Values,
    tensors: Sequence[Any],
    replaced: Mapping[str, Tensor],
    evaluated: dict[str, Tensor],
) -> None:
    for tensor in tensors:
        if tensor in values and tensor.name in replaced:
            evaluated[tensor.name] = values[tensor]
            values[tensor] = replaced[tensor.name].to(values[tensor].dtype)


def ordered(steps: Sequence[Step], targets: Iterable[ITensor]) -> list[Step]:
    """The steps that compute the target tensors or have no output at all (assertions), in
    dependency order.

    Raises NetworkEvaluationError if steps depend on each other.
    """
    producer = {tensor: step for step in steps for tensor in step.outputs}
    needed = {id(producer[tensor]) for tensor in targets if tensor in producer}
    order: dict[Any, None] = {}
    for root in steps:
        if not step_is_root(root, needed):
            continue
        # Each step depends on the next. A list is used instead of recursion, because networks are
        # thousands of layers deep.
        path = [root]
        on_path = {root}
        while path:
            waits_for = None
            for tensor in path[-1].inputs:
                if tensor in producer and producer[tensor] not in order:
                    waits_for = producer[tensor]
                    break
            if waits_for is None or path[-1] in order:
                on_path.discard(path[-1])
                order[path.pop()] = None
            elif waits_for in on_path:
                raise waits_for.error(
                    "the layer's value depends on itself, outside of any loop"
                )
            else:
                path.append(waits_for)
                on_path.add(waits_for)
    return list(order)


def step_is_root(step: Step, needed: set[int]) -> bool:
    return id(step) in needed or not step.outputs
