"""Converters for the operators of `builder.decompositions`.

The formula's graph is walked with the operator's own values, so branches on settings are resolved,
static tensors stay static, and what cannot be converted in it is the operator's reason.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from builder.conversion.block import BlockConverter
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.registry import Predicate, converter
from builder.conversion.sizes import propagate
from builder.decompositions import DECOMPOSITIONS, Condition, Decomposition


class Within(BlockConverter):
    """Walks a formula for one node: its layers are the node's, which names them, and a refusal is
    the node's.
    """

    def __init__(self, ctx: ConversionContext) -> None:
        outer = ctx.blocks
        super().__init__(ctx, outer.policy)
        self.outer, self.place = outer, ctx.node

    def refuse(self, node: Any, reason: str, fix: str | None) -> None:
        """The whole formula is refused."""
        raise Unconvertible(f"its part {node.kind()}: {reason}", fix)

    def bind_outputs(self, node: Any, results: list[Any]) -> None:
        """No tensor is named after a value of the formula, whose names repeat."""
        for value, result in zip(node.outputs(), results, strict=True):
            self.ctx.values[value.debugName()] = result
        self.ctx.node = self.place  # warnings tell the model's line

    def _finish(self, node: Any, first: int) -> None:
        for index in range(first, self.ctx.net.num_layers):
            propagate(self.ctx, self.ctx.net.get_layer(index))


def register(entry: Decomposition) -> None:
    """Register the converter that walks a formula; docs/operators.md lists it under the formula's
    module.
    """

    def build(ctx: ConversionContext, node: Any, *values: Any) -> Any:
        return walked(ctx, entry, values)

    build.__doc__ = entry.function.__doc__
    build.__module__ = entry.function.__module__
    numbers = tuple(name for name in entry.names if name not in entry.tensors)
    converter(
        entry.schema,
        constants=entry.tensors,
        dynamic=numbers,
        note=entry.note,
        when=_predicate(entry.when) if entry.when else (),
    )(build)


def _predicate(condition: Condition) -> Predicate:
    def holds(ctx: Any, arguments: SimpleNamespace) -> str | None:
        return condition(arguments)

    holds.__doc__ = condition.__doc__
    return holds


def walked(ctx: ConversionContext, entry: Decomposition, values: tuple[Any, ...]) -> Any:
    """The formula's result for these values; several for a formula that returns several."""
    numbers = (values[index] for index in entry.numbers)
    graph: Any = entry.graph(tuple("float" if _is_float(v) else "int" for v in numbers))
    saved, node, blocks = ctx.values, ctx.node, ctx.blocks
    names = [value.debugName() for value in graph.inputs()]
    ctx.values = dict(zip(names, values, strict=True))
    try:
        (result,) = Within(ctx).convert(graph)
    finally:
        ctx.values, ctx.node, ctx.blocks = saved, node, blocks
    return result


def _is_float(value: Any) -> bool:
    return isinstance(value, float) or (
        isinstance(value, DynamicScalar) and value.dtype.is_floating_point
    )


for _entry in DECOMPOSITIONS.values():
    register(_entry)
