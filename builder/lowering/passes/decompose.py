"""Passes that replace an operator by its decomposition in `builder.decompositions`.

Branches on constant arguments are resolved. If a decomposition reads a rank, a size or a dtype that
the graph does not determine, conversion evaluates it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from builder.decompositions import DECOMPOSITIONS, Decomposition
from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.passes import Context, Pass


def _number(value: Value) -> str:
    """The type of a `Scalar` argument. A number of unknown type counts as a float."""
    if value.type().kind() in ("FloatType", "NumberType"):
        return "float"
    return "int"


_RESOLVED: dict[tuple[str, tuple[str, ...], str], Any] = {}
_MOST = 512


def _resolved(entry: Decomposition, arguments: list[Value]) -> Any:
    """The decomposition with its branches resolved for the constant arguments, cached for the next
    such node.

    Resolving them in the whole graph costs more, because torch renumbers all nodes when many are
    moved.
    """
    numbers = tuple(_number(arguments[index]) for index in entry.numbers)
    constants = [
        (value.toIValue(),) if _is_simple_constant(value) else () for value in arguments
    ]
    key = (entry.schema, numbers, repr(constants))
    if key not in _RESOLVED:
        graph: Any = entry.graph(numbers).copy()
        for value, constant in zip(list(graph.inputs()), constants, strict=True):
            if constant:
                top = ir.first_node(graph)
                value.replaceAllUsesWith(ir.insert_constant(graph, constant[0], top))
        ir.C._jit_pass_constant_propagation(graph)
        if len(_RESOLVED) >= _MOST:
            _RESOLVED.clear()
        _RESOLVED[key] = graph
    return _RESOLVED[key]


def _is_simple_constant(value: Value) -> bool:
    """Whether a value is a constant that its text describes completely. A number that a trace
    wrapped in a tensor is not.
    """
    wrapped = value.type().kind() == "TensorType"
    return (
        not wrapped and ir.is_constant(value) and isinstance(value.toIValue(), _PLAIN)
    )


_PLAIN = (bool, int, float, str, type(None))


def expand(graph: Graph, node: Node, entry: Decomposition) -> None:
    """Replace a node by a decomposition. Inserted nodes get the node's source location."""
    arguments = ir.inputs(node)
    with ir.inserting(graph, node):
        results = graph.insertGraph(_resolved(entry, arguments), arguments)
    if len(results) != node.outputsSize():
        unpacked = ir.insert(
            graph,
            "prim::TupleUnpack",
            results,
            node,
            [value.type() for value in node.outputs()],
        )
        results = ir.outputs(unpacked)
    ir.replace(node, results)


def _holds(entry: Decomposition, node: Node) -> bool:
    """Whether the decomposition is valid for this node."""
    if entry.when is None:
        return True
    arguments = SimpleNamespace()
    for name, value in zip(entry.names, ir.inputs(node), strict=True):
        if ir.is_constant(value):
            value = value.toIValue()
        setattr(arguments, name, value)
    return entry.when(arguments) is None


def decompose(name: str, kinds: tuple[str, ...], doc: str) -> Pass:
    """A pass that replaces the operators `kinds` by their decompositions, except operators in
    `context.keep`, nodes marked to run in torch, and operators with a user's converter.
    """

    def rewrite(graph: Graph, context: Context) -> None:
        replaced = (kind for kind in kinds if kind not in context.keep)
        for node in ir.nodes_of(graph, *context.present(*replaced)):
            entry = DECOMPOSITIONS.get(node.schema().partition("(")[0])
            if entry and not ir.is_kept(node) and _holds(entry, node):
                expand(graph, node, entry)

    rewrite.__doc__ = doc
    return Pass(name, rewrite, touches=kinds)


unpack_rsqrt = decompose(
    "unpack-rsqrt", ("aten::rsqrt",), "Rewrite `rsqrt(x)` to `1 / sqrt(x)`."
)
unpack_silu = decompose(
    "unpack-silu", ("aten::silu",), "Rewrite `silu(x)` to `x * sigmoid(x)`."
)
unpack_floor_divide = decompose(
    "unpack-floor-divide",
    ("aten::floor_divide",),
    "Rewrite floor_divide to div with floor rounding.",
)
unpack_attention = decompose(
    "unpack-scaled-dot-product-attention",
    ("aten::scaled_dot_product_attention",),
    "Rewrite scaled dot-product attention to two matrix products and a softmax, with scale, masks "
    "and grouped queries. Attention with dropout is not changed.",
)
unpack_multi_head = decompose(
    "unpack-native-multi-head-attention",
    ("aten::_native_multi_head_attention",),
    "Decompose the fused attention of nn.MultiheadAttention.",
)
unpack_encoder_layer = decompose(
    "unpack-transformer-encoder-layer",
    ("aten::_transformer_encoder_layer_fwd",),
    "Decompose the fused layer of nn.TransformerEncoder.",
)
unpack_addmm = decompose(
    "unpack-addmm",
    ("aten::addmm",),
    "Rewrite addmm to a matrix product and a sum, with beta and alpha.",
)
unpack_aliases = decompose(
    "unpack-aliases",
    ("aten::true_divide", "aten::multiply", "aten::divide"),
    "Rewrite the aliases true_divide, multiply and divide.",
)
unpack_type_as = decompose(
    "unpack-type-as",
    ("aten::type_as",),
    "Rewrite type_as to a cast to the other tensor's dtype.",
)
view_to_reshape = decompose(
    "view-to-reshape",
    ("aten::view", "aten::_unsafe_view", "aten::view_as", "aten::reshape_as"),
    "Rewrite view to reshape, which does not depend on strides.",
)
tile_to_repeat = decompose(
    "tile-to-repeat", ("aten::tile",), "Rewrite tile to repeat with a full list."
)
unpack_scatters = decompose(
    "unpack-select-scatter",
    ("aten::select_scatter",),
    "Rewrite a write to an unknown index to a selection by position.",
)
