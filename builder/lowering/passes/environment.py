"""Fold queries of the process state with the values of a served model, and queries of strings.

nn.MultiheadAttention collects a reason in a string, and then checks whether it is empty.
"""

from __future__ import annotations

from typing import Any

from builder.errors import LoweringError
from builder.graph_types import Graph, Value
from builder.lowering import ir
from builder.lowering.locations import source_line
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.complex import makes_complex

# Served models run without gradients, autocast, nested tensors, tracing and scripting.
_VALUES: dict[str, Any] = {
    "aten::is_grad_enabled": False,
    "aten::is_autocast_enabled": False,
    "aten::is_autocast_cpu_enabled": False,
    "prim::requires_grad": False,
    "prim::is_nested": False,
    "prim::is_quantized": False,
    "prim::is_sparse": False,
    "prim::is_mkldnn": False,
    "aten::is_scripting": True,
    # nn.TransformerEncoder queries this before it packs a padded batch as nested tensors. The dense
    # path returns the same values at every position that is not padding.
    "aten::_nested_tensor_from_mask_left_aligned": False,
}


@lowering_pass("resolve-environment", removes=tuple(_VALUES))
def resolve_environment(graph: Graph, context: Context) -> None:
    """Fold queries of gradients, autocast, nested tensors and devices to the values of a served
    model, so that branches on them disappear.

    Fold `is_complex` to false if the graph has no complex values; inputs are real. Devices that the
    file names (a model traced on a GPU) become the device that it runs on.
    """
    for node in ir.nodes_of(graph, *context.present(*_VALUES)):
        ir.replace(node, [ir.insert_constant(graph, _VALUES[node.kind()], node)])
    queries = ir.nodes_of(graph, *context.present("aten::is_complex"))
    if queries and not makes_complex(graph):
        for node in queries:
            ir.replace(node, [ir.insert_constant(graph, False, node)])
    for node in ir.nodes_of(graph, *context.present("prim::device")):
        ir.replace(node, [ir.insert_constant(graph, ir.CPU, node)])
    for node in ir.nodes_of(graph, "prim::Constant"):
        if (
            node.output().type().kind() == "DeviceObjType"
            and node.output().toIValue() != ir.CPU
        ):
            ir.replace(node, [ir.insert_constant(graph, ir.CPU, node)])


@lowering_pass("refuse-nested-tensors", touches=("aten::_nested_tensor_from_mask",))
def refuse_nested_tensors(graph: Graph, context: Context) -> None:
    """Refuse a model that certainly packs its batch as nested tensors (a trace of
    nn.TransformerEncoder without gradients may).
    """
    for node in ir.nodes_of(graph, "aten::_nested_tensor_from_mask"):
        raise LoweringError(
            "the model packs its batch as nested tensors, which TensorRT does not support",
            where=source_line(node),
            fix=(
                "build nn.TransformerEncoder with enable_nested_tensor=False, or script it instead"
                " of tracing it"
            ),
        )


@lowering_pass("fold-string-lengths", touches=("aten::len",))
def fold_string_lengths(graph: Graph, context: Context) -> None:
    """Rewrite `len(s) > 0` to the condition under which s is not empty. A string with literal text
    in its format is never empty.
    """
    for node in ir.nodes_of(graph, "aten::gt"):
        length = node.inputsAt(0).node()
        is_length = (
            length.kind() == "aten::len"
            and length.inputsAt(0).type().kind() == "StringType"
        )
        if is_length and ir.constant(node.inputsAt(1)) == 0:
            is_filled = _filled(length.inputsAt(0))
            if isinstance(is_filled, bool):
                is_filled = ir.insert_constant(graph, is_filled, node)
            if is_filled is not None:
                ir.replace(node, [is_filled])


def _filled(value: Value) -> Any:
    """Whether a string is not empty: a bool, a bool value of the graph, or None if not known."""
    node = value.node()
    if ir.is_constant(value):
        return bool(value.toIValue())
    if node.kind() == "aten::format":
        if str(ir.constant(node.inputsAt(0)) or "").replace("{}", ""):
            return True
        return None
    if node.kind() != "prim::If":
        return None
    if_true, if_false = map(_filled, ir.branch_ends(value))
    if (if_true, if_false) == (True, False):
        return node.inputsAt(0)
    if isinstance(if_true, bool) and if_true is if_false:
        return if_true
    return None
