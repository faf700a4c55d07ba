"""prim::If and prim::Loop: static conditions and trip counts are resolved here."""

from __future__ import annotations

from typing import Any

import torch

from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.registry import evaluator


@evaluator("prim::If")
def branch(ctx: ConversionContext, node: Any, condition: Any) -> Any:
    """The values of the arm that a static condition takes."""
    if isinstance(condition, torch.Tensor):
        condition = bool(condition)
    if isinstance(condition, DynamicScalar) or hasattr(condition, "is_shape_tensor"):
        raise Unconvertible("the branch depends on a value that only the engine computes")
    arm = list(node.blocks())[0 if condition else 1]
    return _one(ctx.blocks.convert(arm))


@evaluator("prim::Loop")
def loop(ctx: ConversionContext, node: Any, trips: Any, condition: Any, *carried: Any) -> Any:
    """The loop written out, for a static trip count and condition."""
    if isinstance(trips, DynamicScalar) or isinstance(condition, DynamicScalar):
        raise Unconvertible("the number of trips depends on a value that only the engine computes")
    body = next(iter(node.blocks()))
    values, trip = list(carried), 0
    while condition and trip < trips:
        inputs = [v.debugName() for v in body.inputs()]
        ctx.values.update(zip(inputs, [trip, *values], strict=True))
        condition, *values = ctx.blocks.convert(body)
        if isinstance(condition, DynamicScalar) or hasattr(condition, "is_shape_tensor"):
            raise Unconvertible("the loop's condition depends on a value that only the engine computes")
        trip += 1
    return _one(values)


def _one(values: list[Any]) -> Any:
    """A node of one output has the value itself; one of several has a list."""
    return values[0] if len(values) == 1 else values
