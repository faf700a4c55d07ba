"""The passes that replace an operator by a formula: one machinery, whose data are formulas.py and
its neighbour.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from builder.lowering import attention_formulas, formulas, ir
from builder.lowering.passes import Context, Pass

When = Callable[[Any], bool]


@lru_cache(maxsize=256)
def formula(text: str, numbers: tuple[str, ...]) -> Any:
    """The inlined graph of a formula; each `number` in its signature becomes the type that the
    node's argument really has.
    """
    for number in numbers:
        text = (
            text.replace("{number}", number)
            if "{number}" in text
            else text.replace(": number", f": {number}", 1)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # must outlive its functions, which the graph names until it is inlined
        unit = torch.jit.CompilationUnit(text)
    graph = unit.f.graph.copy()
    ir.C._jit_pass_inline(graph)
    ir.C._jit_pass_erase_shape_information(graph)
    return graph


_RESOLVED: dict[tuple[str, tuple[str, ...], str], Any] = {}
_MOST = 512


def _resolved(text: str, numbers: tuple[str, ...], arguments: list[Any]) -> Any:
    """The formula with its branches resolved for the arguments that are constants, kept for the
    next such node.

    To resolve them in the whole graph costs more: torch numbers all of its nodes anew when many are
    moved.
    """
    known = [(value.toIValue(),) if _plain(value) else () for value in arguments]
    key = (text, numbers, repr(known))
    if key not in _RESOLVED:
        graph = formula(text, numbers).copy()
        for value, constant in zip(list(graph.inputs()), known, strict=True):
            if constant:
                top = next(iter(graph.nodes()), graph.return_node())
                value.replaceAllUsesWith(ir.insert_constant(graph, constant[0], top))
        ir.C._jit_pass_constant_propagation(graph)
        if len(_RESOLVED) >= _MOST:
            _RESOLVED.clear()
        _RESOLVED[key] = graph
    return _RESOLVED[key]


def _plain(value: Any) -> bool:
    """Whether a value is a constant that its text tells whole; a number that a trace wrapped in a
    tensor is none.
    """
    wrapped = value.type().kind() == "TensorType"
    return not wrapped and ir.is_constant(value) and isinstance(value.toIValue(), _PLAIN)


_PLAIN = (bool, int, float, str, type(None))


def expand(graph: Any, node: Any, text: str) -> None:
    """Put a formula in a node's place; what it inserts has the node's place in the source."""
    arguments = ir.inputs(node)
    numbers = tuple(
        "float" if value.type().kind() in ("FloatType", "NumberType") else "int"
        for value, argument in zip(arguments, ir.parse_schema(node.schema()).arguments, strict=True)
        if "number" in str(argument.type)
    )
    with ir.inserting(graph, node):
        results = graph.insertGraph(_resolved(text, numbers, arguments), arguments)
    if len(results) != node.outputsSize():
        unpacked = ir.insert(
            graph, "prim::TupleUnpack", results, node, [v.type() for v in node.outputs()]
        )
        results = ir.outputs(unpacked)
    ir.replace(node, results)


def unpack(name: str, table: formulas.Table, doc: str, when: When = lambda node: True) -> Pass:
    """A pass that replaces every operator of `table`, but for those that `context.keep` names or
    that shall run in torch.
    """
    kinds = tuple(dict.fromkeys(schema.split("(")[0].split(".")[0] for schema in table))

    def rewrite(graph: Any, context: Context) -> None:
        for node in ir.nodes_of(
            graph, *context.present(*(kind for kind in kinds if kind not in context.keep))
        ):
            text = table.get(node.schema())
            if text and when(node) and not ir.in_fallback(node):
                expand(graph, node, text)

    rewrite.__doc__ = doc
    return Pass(name, rewrite, touches=kinds)


def _no_dropout(node: Any) -> bool:
    return bool(ir.constant(node.inputsAt(4)) == 0)


unpack_rsqrt = unpack("unpack-rsqrt", formulas.RSQRT, "`rsqrt(x)` is `1 / sqrt(x)`.")
unpack_hardsigmoid = unpack(
    "unpack-hardsigmoid", formulas.HARDSIGMOID, "hardsigmoid as clamp(x + 3, 0, 6) / 6."
)
unpack_hardswish = unpack(
    "unpack-hardswish", formulas.HARDSWISH, "hardswish as x * clamp(x + 3, 0, 6) / 6."
)
unpack_silu = unpack("unpack-silu", formulas.SILU, "silu as x * sigmoid(x).")
unpack_gelu = unpack("unpack-gelu", formulas.GELU, "gelu by erf or by tanh, as the model says.")
unpack_log_softmax = unpack(
    "unpack-log-softmax",
    formulas.LOG_SOFTMAX,
    "log_softmax as x - max - log(sum(exp(x - max))): never the log of 0.",
)
unpack_var = unpack(
    "unpack-var", formulas.VAR, "var by the mean of squared deviations, which does not cancel."
)
unpack_std = unpack("unpack-std", formulas.STD, "std as the root of var.")
unpack_remainder = unpack(
    "unpack-remainder", formulas.REMAINDER, "remainder as fmod with the sign of the divisor."
)
unpack_floor_divide = unpack(
    "unpack-floor-divide", formulas.FLOOR_DIVIDE, "floor_divide as div rounding down."
)
unpack_attention = unpack(
    "unpack-scaled-dot-product-attention",
    attention_formulas.ATTENTION,
    "Attention as two products around a softmax: scale, masks of all kinds, grouped queries. With"
    " dropout it stays.",
    _no_dropout,
)
unpack_multi_head = unpack(
    "unpack-native-multi-head-attention",
    attention_formulas.MULTI_HEAD,
    "The fused attention of nn.MultiheadAttention in its parts.",
)
unpack_encoder_layer = unpack(
    "unpack-transformer-encoder-layer",
    attention_formulas.ENCODER_LAYER,
    "The fused layer of nn.TransformerEncoder, in its parts.",
)
unpack_group_norm = unpack(
    "unpack-group-norm",
    formulas.GROUP_NORM,
    "group_norm over reshaped groups, where no layer does it.",
)
unpack_addmm = unpack(
    "unpack-addmm", formulas.ADDMM, "addmm as a product and a sum, beta and alpha honoured."
)
unpack_aliases = unpack(
    "unpack-aliases", formulas.TRUE_DIVIDE, "Second names: true_divide, multiply, divide."
)
unpack_type_as = unpack(
    "unpack-type-as", formulas.TYPE_AS, "type_as is a cast to the other's dtype."
)
view_to_reshape = unpack(
    "view-to-reshape", formulas.VIEW, "A view needs strides that fit; reshape asks for none."
)
tile_to_repeat = unpack("tile-to-repeat", formulas.TILE, "tile as repeat with a full list.")
unpack_scatters = unpack(
    "unpack-select-scatter", formulas.SLICE_SCATTER, "A write to an unknown index chooses by place."
)
