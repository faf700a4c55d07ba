"""Rewrite pad by its mode."""

from __future__ import annotations

from typing import Any

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes import Context, lowering_pass

_KINDS = {"reflect": "aten::reflection_pad{}d", "replicate": "aten::replication_pad{}d"}


@lowering_pass("unpack-pad", touches=("aten::pad", "aten::_pad_circular"))
def unpack_pad(graph: Graph, context: Context) -> None:
    """`pad` by its mode: constant_pad_nd, reflection_padNd, replication_padNd; circular as a
    concatenation of the other side's slice, axis by axis.
    """
    for node in ir.nodes_of(graph, "aten::pad", "aten::_pad_circular"):
        if ir.is_kept(node):
            continue
        pads = node.inputsAt(1)
        mode = "circular"
        if node.kind() == "aten::pad":
            mode = ir.constant(node.inputsAt(2))
        new = _padded(Emit(graph, node), node, pads, mode)
        if new is not None:
            ir.replace(node, [new])


def _padded(emit: Emit, node: Node, pads: Value, mode: str | None) -> Any | None:
    """The padded tensor; None if the mode is not known, or the pads are not known and must be."""
    x = node.inputsAt(0)
    if mode == "constant":
        value = node.inputsAt(3)
        if ir.is_none(value):
            value = emit.constant(0)
        return emit.op("aten::constant_pad_nd", x, pads, value)
    sides = ir.list_length(pads)
    if mode in _KINDS and sides is not None:
        return emit.op(_KINDS[mode].format(sides // 2), x, pads)
    amounts = ir.int_list(pads)
    if mode == "circular" and amounts is not None:
        return _circular(emit, x, amounts)
    return None


def _circular(emit: Emit, x: Value, pads: list[int]) -> Value:
    """Circular padding. The last axis is first in `pads`. A negative pad crops, and cropped
    elements are not wrapped around.
    """
    for axis, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True), 1):
        if min(before, after) < 0:
            end = after if after < 0 else None
            x = emit.op("aten::slice", x, -axis, max(-before, 0), end, 1)
        parts = [x]
        if before > 0:
            parts.insert(0, emit.op("aten::slice", x, -axis, -before, None, 1))
        if after > 0:
            parts.append(emit.op("aten::slice", x, -axis, 0, after, 1))
        if len(parts) > 1:
            x = emit.op("aten::cat", emit.list(parts, ir.TENSOR), -axis)
    return x
