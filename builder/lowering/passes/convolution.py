"""Rewrite every convolution to one operator."""

from __future__ import annotations

from typing import Any

import torch

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.folding import QUANTIZERS
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.dtypes import bottom_up, input_facts

_PLAIN = {f"aten::conv{n}d": n for n in (1, 2, 3)}
_TRANSPOSED = {f"aten::conv_transpose{n}d": n for n in (1, 2, 3)}


_MODE = "aten::_convolution_mode"  # the form of a string padding in a trace
_KINDS = (*_PLAIN, *_TRANSPOSED, _MODE, "aten::convolution", "aten::_convolution")


@lowering_pass("unify-convolutions", touches=_KINDS)
def unify_convolutions(graph: Graph, context: Context) -> None:
    """Write convNd, conv_transposeNd, convolution and the old `_convolution` as
    `aten::_convolution` with all 13 arguments.

    String padding becomes numbers: `valid` is 0, `same` is half of dilation * (kernel - 1) on
    either side, with one more at the end by an explicit pad if that is odd. For `same` the kernel's
    size must be known. An input that is known to have no batch axis keeps convNd, because
    `_convolution` does not accept it.
    """
    nodes = [
        node
        for node in ir.nodes_of(graph, *context.present(*_KINDS))
        if node.inputsSize() != _ARGUMENTS
    ]
    if not nodes:
        return
    unbatched = _unbatched(graph, context)
    shared = ir.Constants(graph)
    for node in nodes:
        if not ir.is_kept(node) and node.output().unique() not in unbatched:
            _rewrite(graph, node, shared)


_ARGUMENTS = 13  # the schema of `_convolution` that all convolutions are rewritten to


def _unbatched(graph: Graph, context: Context) -> set[int]:
    """The outputs of convolutions whose input has no batch axis."""
    facts = input_facts(graph, context)
    unbatched = set()
    for node in bottom_up(graph):
        axes = _PLAIN.get(node.kind()) or _TRANSPOSED.get(node.kind())
        if axes and facts.rank(node.inputsAt(0)) == axes + 1:
            unbatched.add(node.output().unique())
        facts.learn(node)
    return unbatched


def _rewrite(graph: Graph, node: Node, shared: ir.Constants) -> None:
    emit = Emit(graph, node)
    kind = node.kind()
    args = ir.inputs(node)
    if kind in _TRANSPOSED:
        x, weight, bias, stride, padding, output_padding, groups, dilation = args
        core = [x, weight, bias, stride, padding, dilation]
        core += [shared(True), output_padding, groups]
    elif kind in _PLAIN or kind == _MODE:
        x, weight, bias, stride, padding, dilation, groups = args
        axes = _PLAIN.get(kind) or _axes(weight)
        if axes is None:
            return
        if padding.type().kind() == "StringType":
            padded = _string_padding(emit, x, weight, padding, dilation, axes)
            if padded is None:
                return
            x, padding = padded
        core = [x, weight, bias, stride, padding, dilation]
        core += [shared(False), shared([0] * axes), groups]
    else:
        core = args[:9]
    _emit(graph, node, core, shared, args)


def _emit(
    graph: Graph, node: Node, core: list[Value], shared: ir.Constants, args: list[Value]
) -> None:
    """Emit `_convolution`. The flags (benchmark, deterministic, cuDNN, tf32) do not change the
    result.
    """
    flags: list[Any] = [False, False, True]
    if node.kind() == "aten::_convolution":
        flags = args[9:12]
    emit = Emit(graph, node, shared=shared)
    ir.replace(node, [emit.op("aten::_convolution", *core, *flags, True)])


def _axes(weight: Value) -> int | None:
    """The number of spatial axes; None if the weight is not known."""
    kernel = ir.constant(_unquantized(weight))
    if isinstance(kernel, torch.Tensor):
        return kernel.dim() - 2
    return None


def _unquantized(weight: Value) -> Value:
    """The weight before its fake quantization, which has the same shape."""
    if weight.node().kind() in QUANTIZERS:
        return weight.node().inputsAt(0)
    return weight


def _string_padding(
    emit: Emit, x: Value, weight: Value, padding: Value, dilation: Value, axes: int
) -> tuple[Any, Any] | None:
    """The input (padded if the sides differ) and the padding in numbers; None if the kernel is not
    known.
    """
    if ir.constant(padding) == "valid":
        return x, emit.constant([0] * axes)
    steps = ir.int_list(dilation)
    kernel = ir.constant(_unquantized(weight))
    if steps is None or not isinstance(kernel, torch.Tensor):
        return None
    if len(steps) == 1:
        steps = steps * axes
    totals = [
        step * (size - 1) for step, size in zip(steps, kernel.shape[2:], strict=True)
    ]
    if any(total % 2 for total in totals):
        extra = []
        for total in reversed(totals):  # the last axis is first
            extra += [0, total % 2]
        x = emit.op("aten::constant_pad_nd", x, extra, 0)
    return x, emit.constant([total // 2 for total in totals])
