"""Rewrite fake quantization (QAT) to the two forms that conversion supports: per tensor and per
channel.
"""

from __future__ import annotations

import torch

from builder.errors import LoweringError
from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.locations import source_line
from builder.lowering.passes import Context, lowering_pass

DISABLE_OBSERVERS = (
    "disable observers: model.apply(torch.ao.quantization.disable_observer)"
)
_TENSOR = "aten::fake_quantize_per_tensor_affine"
_CHANNEL = "aten::fake_quantize_per_channel_affine"
_OBSERVING = (
    "aten::fused_moving_avg_obs_fake_quant",
    "aten::_fused_moving_avg_obs_fq_helper",
    "aten::_fused_moving_avg_obs_fq_helper_functional",
)
_SWITCHED = "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"
_LEARNABLE = {
    "aten::_fake_quantize_learnable_per_tensor_affine": _TENSOR,
    "aten::_fake_quantize_learnable_per_channel_affine": _CHANNEL,
}
_MASKED = {f"{_TENSOR}_cachemask": _TENSOR, f"{_CHANNEL}_cachemask": _CHANNEL}


@lowering_pass(
    "unify-fake-quantize",
    touches=(*_OBSERVING, _SWITCHED, *_LEARNABLE, *_MASKED, _TENSOR),
)
def unify_fake_quantize(graph: Graph, context: Context) -> None:
    """Write fake quantization in all its forms as `fake_quantize_per_tensor_affine(x, scale,
    zero_point, min, max)`, with numbers if they are known, or as
    `fake_quantize_per_channel_affine`.

    The observer of `fused_moving_avg_obs_fake_quant` must be disabled by a constant: an enabled
    observer would change its scale with every request, and a LoweringError names its line. This
    pass runs before functionalize, because the schema of an observer declares a write.
    """
    for node in ir.nodes_of(graph, *_OBSERVING):
        _without_observer(graph, node)
    for node in _fake_nodes(graph, _SWITCHED):
        x, scale, zero_point, switch, *bounds = ir.inputs(node)
        _switched(graph, node, _TENSOR, [x, scale, zero_point, *bounds], switch)
    for node in _fake_nodes(graph, *_MASKED):
        _put(graph, node, _MASKED[node.kind()], ir.inputs(node))
    for node in _fake_nodes(graph, *_LEARNABLE):
        _round_learned_zero_point(graph, node)
    for node in _fake_nodes(graph, _TENSOR):
        _with_numbers(graph, node)


def _fake_nodes(graph: Graph, *kinds: str) -> list[Node]:
    return [node for node in ir.nodes_of(graph, *kinds) if not ir.in_fallback(node)]


def _put(graph: Graph, node: Node, kind: str, arguments: list[Value]) -> None:
    """Replace the node by one operator, unless its mask is also read."""
    first, *masks = ir.outputs(node)
    if not any(mask.uses() for mask in masks):
        first.replaceAllUsesWith(Emit(graph, node).op(kind, *arguments))
        node.destroy()


def _without_observer(graph: Graph, node: Node) -> None:
    """The fake quantization of a disabled observer."""
    x, observes, switch, _, _, scale, zero_point, _, low, high, axis, by_row = (
        ir.inputs(node)[:12]
    )
    if _flag(observes) is not False:
        raise LoweringError(
            f"{node.kind()} has an enabled observer: it would change its scale with every request",
            where=source_line(node),
            fix=DISABLE_OBSERVERS,
        )
    if ir.constant(by_row):
        _switched(
            graph, node, _CHANNEL, [x, scale, zero_point, axis, low, high], switch
        )
    else:
        _switched(graph, node, _TENSOR, [x, scale, zero_point, low, high], switch)


def _switched(
    graph: Graph, node: Node, kind: str, arguments: list[Value], switch: Value
) -> None:
    on = _flag(switch)
    if on:
        _put(graph, node, kind, arguments)
    elif on is False and not any(mask.uses() for mask in ir.outputs(node)[1:]):
        ir.outputs(node)[0].replaceAllUsesWith(arguments[0])
        node.destroy()


def _flag(value: Value) -> bool | None:
    """Whether a flag is set; None if not known."""
    tensor = ir.constant(value)
    if isinstance(tensor, torch.Tensor) and tensor.numel():
        return bool(tensor.reshape(-1)[0])
    return None


def _round_learned_zero_point(graph: Graph, node: Node) -> None:
    """Round a learned zero point as torch does: half to even, clamped to the bounds."""
    x, scale, zero_point, *bounds = ir.inputs(node)[:-1]
    tensor = ir.constant(zero_point)
    low, high = (ir.constant(bound) for bound in bounds[-2:])
    if (
        isinstance(tensor, torch.Tensor)
        and isinstance(low, int)
        and isinstance(high, int)
    ):
        rounded = tensor.detach().round().clamp(low, high).to(torch.int32)
        whole = ir.insert_constant(graph, rounded, node)
        _put(graph, node, _LEARNABLE[node.kind()], [x, scale, whole, *bounds])


def _with_numbers(graph: Graph, node: Node) -> None:
    """Replace a scale and zero point of one known element by numbers."""
    scale = ir.constant(node.inputsAt(1))
    zero_point = ir.constant(node.inputsAt(2))
    tensors = [
        value
        for value in (scale, zero_point)
        if isinstance(value, torch.Tensor) and value.numel() == 1
    ]
    if len(tensors) == 2:
        node.replaceInput(1, ir.insert_constant(graph, float(scale), node))
        node.replaceInput(2, ir.insert_constant(graph, int(zero_point), node))
