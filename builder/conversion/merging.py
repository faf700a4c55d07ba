"""Linear layers that read one tensor, such as query, key and value, as one matrix product and a slice for each.

Three products of 768 columns each fill a GPU less than one of 2304, above all at small batches.
"""

from __future__ import annotations

from typing import Any

import torch

from builder.conversion.context import ConversionContext

MERGED = False
"""Whether linears are merged at all."""


def siblings(ctx: ConversionContext, node: Any) -> list[Any]:
    """The linear nodes of the block that read the same input as `node`, itself the first, when their weights and
    biases are static and of one dtype and each of them may be computed with the others; else nothing."""
    if not MERGED or ctx.blocks.policy.keep_fp32:  # a pattern may spare one of them
        return []
    readers = [use.user for use in node.inputsAt(0).uses() if use.offset == 0]  # in no order
    others = [user for user in readers if user.kind() == "aten::linear" and user != node]
    same = [node, *(user for user in others if user.owningBlock() == node.owningBlock())]
    known = [_weights(ctx, user) for user in same]
    kinds = {(w.dtype, w.shape[-1], None if b is None else b.dtype) for w, b in known if w is not None}
    fits = len(same) > 1 and len(kinds) == 1 and all(w is not None and w.dim() == 2 for w, _ in known)
    return same if fits and all(b is None or isinstance(b, torch.Tensor) for _, b in known) else []


def _weights(ctx: ConversionContext, node: Any) -> tuple[Any, Any]:
    """A linear's weight, or None where it is not static, and its bias; constants may stand behind the node at hand."""
    weight, bias = (
        ctx.values.get(value.debugName(), value.toIValue() if value.node().kind() == "prim::Constant" else ctx)
        for value in (node.inputsAt(1), node.inputsAt(2))
    )
    return (weight if isinstance(weight, torch.Tensor) else None), bias


def joined(ctx: ConversionContext, nodes: list[Any], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The weights and biases of all nodes, one below the other."""
    weights, biases = zip(*(_weights(ctx, node) for node in nodes), strict=True)
    return torch.cat(weights).to(dtype), None if biases[0] is None else torch.cat(biases).to(dtype)


def apart(ctx: ConversionContext, nodes: list[Any], x: Any, product: Any) -> Any:
    """Each node's columns of the product of x: the first one's are returned, the others' kept in ctx.merged by name."""
    lead, start = ctx.sizes(x)[:-1], 0
    for node in nodes:
        width = int(_weights(ctx, node)[0].shape[0])
        sizes = [*lead, width]
        columns = ctx.slice(product, [0] * len(lead) + [start], sizes, [1] * len(sizes))
        ctx.merged[node.output().debugName()] = columns
        start += width
    return ctx.merged.pop(nodes[0].output().debugName())
