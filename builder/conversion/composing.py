"""Operators converted by a formula: TorchScript that means the same in operators that have
converters.

    compose(__name__, {"aten::trace(Tensor self) -> Tensor": ("the diagonal's sum", "def f(self:
    Tensor): ...")})

The formula's graph is walked with the operator's own values, so branches on settings are resolved,
static tensors stay static, and what cannot be converted in it is the operator's reason. A parameter
annotated `number` takes the type of what is given.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from builder.conversion.block import BlockConverter
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.registry import Predicate, converter
from builder.conversion.sizes import propagate

Formulas = Mapping[str, tuple[str, str]]
"""By schema, what the operator computes (for docs/operators.md) and the function `f` that says it.
"""


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


def compose(
    family: str, formulas: Formulas, note: str = "", when: Predicate | tuple[Predicate, ...] = ()
) -> None:
    """Register a converter for each formula; `family` is the module that docs/operators.md lists
    them under.
    """
    for schema, (doc, text) in formulas.items():
        _register(family, schema, doc, text, note, when)


def _register(family: str, schema: str, doc: str, text: str, note: str, when: Any) -> None:
    arguments = torch._C.parse_schema(schema).arguments
    tensors = tuple(a.name for a in arguments if "Tensor" in str(a.type))
    numbers = tuple(a.name for a in arguments if a.name not in tensors)

    def build(ctx: ConversionContext, node: Any, *values: Any) -> Any:
        return walked(ctx, text, values)

    build.__doc__ = doc
    build.__module__ = family
    converter(schema, constants=tensors, dynamic=numbers, note=note, when=when)(build)


def walked(ctx: ConversionContext, text: str, values: tuple[Any, ...]) -> Any:
    """The formula's result for these values; several for a formula that returns several."""
    graph = _graph(text, tuple("float" if _is_float(v) else "int" for v in values))
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


@lru_cache(maxsize=512)
def _graph(text: str, kinds: tuple[str, ...]) -> Any:
    head, colon, body = text.partition("):\n")
    parameters = head.split(", ")
    typed = [p.replace(": number", f": {kind}") for p, kind in zip(parameters, kinds, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unit = torch.jit.CompilationUnit(", ".join(typed) + colon + body)
    graph = unit.f.graph.copy()
    torch._C._jit_pass_inline(graph)
    torch._C._jit_pass_erase_shape_information(graph)
    return graph


def function(parameters: str, *lines: str) -> str:
    """The text of a formula: its parameters and its body's lines."""
    return f"def f({parameters}):\n" + "".join(f"    {line}\n" for line in lines)
