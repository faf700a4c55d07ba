"""Find the nodes that TensorRT can run, by a trial conversion of every node on a scratch network
with its actual arguments.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from builder.conversion import (
    CONVERTERS,
    EVALUATORS,
    FALLBACK_FIX,
    MISSING,
    NO_SCHEMA,
    ConversionContext,
    GraphWalker,
    MissingInput,
    Policy,
    Refusal,
    Unconvertible,
    add_input,
    key_of_node,
    operators,
    refusals,
    unreadable,
)
from builder.engine import new_network
from builder.errors import ConversionError, EngineError, UnsupportedOperator
from builder.graph_types import Node
from builder.lowering import LoweredGraph, source_location
from builder.manifest import Range, TensorSpec
from builder.partition import view
from builder.partition.repeats import Repeats
from builder.partition.shapes import Shapes
from builder.partition.view import Step

BY_MODULE = "the manifest keeps its module in torch (fallback: modules)"
READS_OTHERS = (
    "it reads a result of an operator in torch that is not a tensor, or has a"
    " data-dependent shape or a dtype that TensorRT lacks"
)


MOST_REPORTED = 100
"""Maximum number of nodes with one schema and reason whose source line is looked up, which is slow
in torch for long sources.
"""


@dataclass(frozen=True)
class Support:
    """The result of the trial. `refused` has the reason why a node stays in torch, by its index in
    the graph.
    """

    refused: dict[int, UnsupportedOperator]
    warnings: tuple[str, ...]


class TrialBackend(operators.Operators):
    """Converts all nodes that it can.

    The outputs of a node that cannot be converted become network inputs.
    """

    def __init__(
        self,
        ctx: ConversionContext,
        shapes: Shapes,
        ops: Collection[str],
        in_torch: Collection[int],
    ) -> None:
        super().__init__(ctx, Policy())
        self.walker = GraphWalker(ctx, self)
        # A separate mutable mapping: copies for each of thousands of placeholders would be
        # quadratic.
        self.profiles: tuple[dict[str, Range], ...] = tuple(
            dict(profile) for profile in ctx.profiles
        )
        ctx.profiles = self.profiles
        self.shapes = shapes
        self.ops = ops
        self.in_torch = in_torch
        self.refused: dict[int, UnsupportedOperator] = {}
        self.defects: list[str] = []
        self.position = 0
        self.repeats = Repeats(ctx)
        self.placeholders: dict[Any, Any] = {}
        """Placeholders by dtype and shape, shared if possible: TensorRT is slow with thousands of
        inputs.
        """
        self.reported: Counter[tuple[str, str]] = Counter()

    def run(self, steps: Sequence[Step]) -> None:
        """Try every top-level node in order."""
        for self.position, step in enumerate(steps):
            if step.kind.startswith("prim::") or self._stays_in_torch(step.kind):
                self.walker.visit(step.node)
                self._forget(step)
            else:
                self._try(step)

    def _forget(self, step: Step) -> None:
        """Replace the outputs of a branch or loop that stays in torch because of an inner node by
        placeholders, because the trial's tensors for them are not valid.
        """
        if self.position in self.refused:
            self.walker.bind(step.node, self._placeholders(step.node))

    def _try(self, step: Step) -> None:
        signature, stand_ins = self.repeats.find(step)
        if stand_ins is not None:
            self.ctx.values.update(zip(step.outputs, stand_ins, strict=True))
            return
        self.walker.visit(step.node)
        if signature is not None and self.position not in self.refused:
            self.repeats.remember(signature, step)

    def _stays_in_torch(self, kind: str) -> bool:
        return self.position in self.in_torch or self._matches_ops(kind)

    def _matches_ops(self, kind: str) -> bool:
        return any(fnmatch.fnmatchcase(kind, pattern) for pattern in self.ops)

    def evaluate(self, node: Node, values: list[Any]) -> list[Any] | None:
        """As in conversion, except for nodes that the manifest keeps in torch."""
        if self.position in self.in_torch:
            raise Unconvertible(BY_MODULE)
        if self._matches_ops(node.kind()):
            raise Unconvertible("the manifest keeps it in torch (fallback: ops)")
        return super().evaluate(node, values)

    def refuse(self, node: Node, refusal: Refusal) -> list[Any]:
        """Record the first reason for the top-level node, and continue. A defect of a converter is
        also a fallback, with a warning.
        """
        if isinstance(refusal, ConversionError):
            self.defects.append(str(refusal))
            self._remember(node, refusal.message, refusal.fix)
        elif isinstance(refusal, MissingInput):
            key = key_of_node(node)
            is_known = (
                key in CONVERTERS or key in EVALUATORS or node.schema() == NO_SCHEMA
            )
            self._remember(
                node, READS_OTHERS if is_known else refusals.reason(key), None
            )
        else:
            self._remember(node, refusal.reason, refusal.fix)
        return self._placeholders(node)

    def _remember(self, node: Node, reason: str, fix: str | None) -> None:
        if self.position in self.refused:
            return
        schema = node.schema() if node.schema() != NO_SCHEMA else node.kind()
        self.reported[schema, reason] += 1
        located = (
            self.reported[schema, reason] <= MOST_REPORTED and reason != READS_OTHERS
        )
        name = next((value.debugName() for value in node.outputs()), "")
        self.refused[self.position] = UnsupportedOperator(
            schema,
            name,
            source_location(node) if located else "graph",
            reason,
            fix or FALLBACK_FIX,
        )

    def finish(self, node: Node, results: list[Any], first: int) -> None:
        """Follow the sizes only: the names and source locations of a scratch network are never
        read, and are slow to set.
        """
        self.follow_sizes(first)

    def _placeholders(self, node: Node) -> list[Any]:
        return [self._placeholder(value.debugName()) for value in node.outputs()]

    def _placeholder(self, name: str) -> Any:
        """A network input with the value's inferred shape, or MISSING if the shape depends on data
        or TensorRT has no such tensor.
        """
        result = self.shapes.spec(name, f"placeholder_{name}_{self.ctx.net.num_inputs}")
        if result is None or unreadable(result[0]):
            return MISSING
        spec, new_ranges = result
        key = None if new_ranges or "int" in spec.dtype else (spec.dtype, spec.shape)
        if key in self.placeholders:
            return self.placeholders[key]
        for profile in self.profiles:
            profile.update(new_ranges)
        try:
            placeholder = add_input(self.ctx, spec)
        except EngineError:
            # an internal error of TensorRT in a refused node may invalidate the network
            return MISSING
        if key is not None:
            self.placeholders[key] = placeholder
        return placeholder


def support(
    lowered: LoweredGraph,
    specs: Sequence[TensorSpec],
    shapes: Shapes,
    *,
    ops: Collection[str] = (),
    in_torch: Collection[int] = (),
    steps: Sequence[Step] | None = None,
) -> Support:
    """Try every node (`steps`, if already read). `ops` are patterns of node kinds that stay in
    torch, and `in_torch` the indices of such nodes.
    """
    _, network, messages = new_network()
    ctx = ConversionContext(network, shapes.profiles, messages)
    for value, spec in zip(lowered.graph.inputs(), specs, strict=True):
        ctx.values[value.debugName()] = (
            MISSING if unreadable(spec) else add_input(ctx, spec)
        )
    trial = TrialBackend(ctx, shapes, ops, in_torch)
    trial.run(view.steps(lowered.graph) if steps is None else steps)
    return Support(trial.refused, tuple(trial.defects))
