"""Run several interpreters of one graph together, node by node, each at different sizes (probes).

The layers of a model repeat, so results are cached: a node with the same operator and the same
shapes at every probe as an earlier one has the same outputs, which one lookup finds for all probes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from builder.conversion import CONVERTERS, EVALUATORS, MISSING
from builder.partition.abstract_values import has_data, is_unknown, signature
from builder.partition.interpreter import ShapeInterpreter
from builder.partition.view import Step


@dataclass(frozen=True, slots=True)
class NodeResult:
    """The result of a node: the outputs of each interpreter, the key of each output, and the
    operations of each.
    """

    results: list[list[Any]]
    numbers: list[int | None]
    flops: list[int]


class JointEvaluation:
    """Executes every top-level node in each interpreter before the next one."""

    def __init__(self, interpreters: Sequence[ShapeInterpreter]) -> None:
        self.interpreters = interpreters
        self.results_by_key: dict[tuple[Any, ...], NodeResult] = {}
        self.numbers: dict[str, int | None] = {}
        """The key of every value: equal for values with equal shapes at every probe, None if one is
        unknown.
        """
        self.with_data: set[str] = set()
        """Values that are tensors with data: their shape does not determine an evaluator's result.
        """
        self.signatures: dict[Any, int] = {}

    def run(self, steps: Sequence[Step]) -> list[list[int]]:
        """The floating-point operations of every node, in each interpreter."""
        return [self._step(step) for step in steps]

    def _step(self, step: Step) -> list[int]:
        key = None
        if not step.kind.startswith("prim::"):
            key = self._key(step)
        previous = None
        if key is not None:
            previous = self.results_by_key.get(key)
        if previous is None:
            return self._execute(step, key)
        for interpreter, results in zip(
            self.interpreters, previous.results, strict=True
        ):
            interpreter.ctx.values.update(zip(step.outputs, results, strict=True))
        self.numbers.update(zip(step.outputs, previous.numbers, strict=True))
        return previous.flops

    def _key(self, step: Step) -> tuple[Any, ...] | None:
        for name in step.inputs:
            if name not in self.numbers:
                self.numbers[name] = self._number(name)
        key = (step.key, *map(self.numbers.__getitem__, step.inputs))
        if None in key or (
            _is_evaluated(step) and not self.with_data.isdisjoint(step.inputs)
        ):
            return None
        return key

    def _number(self, name: str) -> int | None:
        values = [interpreter.ctx.values[name] for interpreter in self.interpreters]
        if any(value is MISSING or is_unknown(value) for value in values):
            return None
        if has_data(values[0]):
            self.with_data.add(name)
        try:
            return self.signatures.setdefault(
                tuple(map(signature, values)), len(self.signatures)
            )
        except TypeError:  # a dictionary, which is never compared
            return None

    def _execute(self, step: Step, key: tuple[int | str, ...] | None) -> list[int]:
        evaluated = _is_evaluated(step)
        are_known = [
            i.execute(step, shapes_are_known=key is not None and not evaluated)
            for i in self.interpreters
        ]
        flops = [interpreter.flops for interpreter in self.interpreters]
        if key is not None and (evaluated or all(are_known)):
            results = [
                [i.ctx.values[name] for name in step.outputs] for i in self.interpreters
            ]
            self.results_by_key[key] = NodeResult(
                results, [self._number(name) for name in step.outputs], flops
            )
        return flops


def _is_evaluated(step: Step) -> bool:
    """Whether the node only computes numbers and sizes and needs no torch operator."""
    return step.key in EVALUATORS and step.key not in CONVERTERS
