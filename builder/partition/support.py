"""Which nodes TensorRT can run: every node is tried on a scratch network with the arguments that it really has."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from builder.conversion.block import MISSING, BlockConverter
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.convert import add_input
from builder.conversion.sizes import propagate
from builder.engine.network import new_network
from builder.errors import ConversionError, UnsupportedOperator
from builder.lowering import LoweredGraph
from builder.manifest.spec import Profile, TensorSpec
from builder.partition.shapes import Shapes

READS_OTHERS = "it reads a value that TensorRT cannot hold, or whose shape depends on data"


@dataclass(frozen=True)
class Support:
    """What the trial found: `refused` holds, by the node's index in the graph, why it stays in torch."""

    refused: dict[int, UnsupportedOperator]
    warnings: tuple[str, ...]


class Trial(BlockConverter):
    """Converts what it can; where a node cannot be, its outputs go on as inputs of the network."""

    def __init__(self, ctx: ConversionContext, shapes: Shapes, ops: Collection[str], kept: Collection[int]) -> None:
        super().__init__(ctx)
        self.shapes, self.ops, self.kept = shapes, ops, kept
        self.refused: dict[int, UnsupportedOperator] = {}
        self.defects: list[str] = []
        self.position = 0

    def run(self, graph: Any) -> None:
        """Try every top-level node in order."""
        for self.position, node in enumerate(graph.nodes()):
            self.node(node)

    def node(self, node: Any) -> None:
        """As in conversion, but a converter's defect falls back too, with a warning."""
        try:
            super().node(node)
        except ConversionError as defect:
            self.defects.append(str(defect))
            self.refuse(node, defect.message, None)

    def _results(self, node: Any, values: list[Any]) -> list[Any]:
        if self.position in self.kept:
            raise Unconvertible("the manifest keeps its module in torch (fallback: modules)")
        if any(fnmatch.fnmatchcase(node.kind(), pattern) for pattern in self.ops):
            raise Unconvertible("the manifest keeps it in torch (fallback: ops)")
        return super()._results(node, values)

    def refuse(self, node: Any, reason: str, fix: str | None) -> None:
        """Remember the first reason for the top-level node, and go on."""
        super().refuse(node, reason, fix)
        self.refused.setdefault(self.position, self.unsupported[-1])

    def _finish(self, node: Any, first: int) -> None:
        """Sizes only: nobody will read the names and source lines of a scratch network, and they take longest."""
        for index in range(first, self.ctx.net.num_layers):
            propagate(self.ctx, self.ctx.net.get_layer(index))

    def _skip(self, node: Any) -> None:
        self.refuse(node, READS_OTHERS, None)

    def _skip_outputs(self, node: Any) -> None:
        for value in node.outputs():
            self.ctx.values[value.debugName()] = self._placeholder(value.debugName())

    def _placeholder(self, name: str) -> Any:
        """A network input with the value's inferred shape, or MISSING where the shape depends on data."""
        found = self.shapes.spec(name, f"placeholder_{name}_{self.ctx.net.num_inputs}")
        if found is None or found[0].dtype == "float64":
            return MISSING
        spec, own = found
        self.ctx.profiles = tuple({**profile, **own} for profile in self.ctx.profiles)
        return add_input(self.ctx, spec)


def support(
    lowered: LoweredGraph,
    specs: Sequence[TensorSpec],
    profiles: Sequence[Profile],
    shapes: Shapes,
    *,
    ops: Collection[str] = (),
    kept: Collection[int] = (),
) -> Support:
    """Try every node; `ops` are patterns over node kinds that stay in torch, `kept` indices of nodes that do."""
    _, network, messages = new_network()
    ctx = ConversionContext(network, profiles, messages)
    for value, spec in zip(lowered.graph.inputs(), specs, strict=True):
        unsupported_dtype = getattr(torch, spec.dtype) == torch.float64
        ctx.values[value.debugName()] = MISSING if unsupported_dtype else add_input(ctx, spec)
    trial = Trial(ctx, shapes, ops, kept)
    trial.run(lowered.graph)
    return Support(trial.refused, tuple(trial.defects))
