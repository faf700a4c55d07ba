"""Memory effects from an operator's schema: its writes, and the values that its outputs may share
memory with.
"""

from __future__ import annotations

from functools import lru_cache

from builder.analysis import Facts
from builder.dtypes import code_of
from builder.graph_types import Graph, Node, Type, Value
from builder.lowering import ir
from builder.lowering.passes.dtypes import bottom_up
from builder.lowering.passes.functionalize.views import UNDECLARED_VIEWS

HOLDERS = frozenset(["TensorType", "OptionalType", "ListType", "TupleType", "DictType"])
CONSTRUCTORS = frozenset(
    ["prim::ListConstruct", "prim::TupleConstruct", "prim::DictConstruct"]
)
_PRIM_READERS = frozenset(
    [
        "prim::TupleIndex",
        "prim::TupleUnpack",
        "prim::ListUnpack",
        "prim::unchecked_cast",
    ]
)
COPIES = frozenset(
    f"aten::{name}"
    for name in ("slice", "add", "mul", "list", "copy", "dict", "sorted", "items")
)
"""Operators that build a list or dictionary from the elements of another one. Their schemas declare
no alias, but the elements are the same objects.
"""


def copies_container(node: Node) -> bool:
    """Whether a node builds a container from the elements of another one."""
    return node.kind() in COPIES and node.output().type().kind() in (
        "ListType",
        "DictType",
    )


def holds(value: Value) -> bool:
    """Whether a value is a tensor or may hold one."""
    return value.type().kind() in HOLDERS


def written_inputs(node: Node) -> list[int]:
    """The indices of the inputs that a node writes in place."""
    return _written_arguments(node.schema())


def writes(node: Node) -> bool:
    """Whether a node writes one of its inputs in place."""
    return bool(written_inputs(node))


@lru_cache(maxsize=4096)
def _written_arguments(schema_text: str) -> list[int]:
    if schema_text == "(no schema)" or "!" not in schema_text:
        return []
    arguments = ir.parse_schema(schema_text).arguments
    return [
        i
        for i, argument in enumerate(arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


@lru_cache(maxsize=4096)
def _gives_alias(schema_text: str) -> bool:
    """Whether an output is declared to share memory with an input, or with anything (`*`)."""
    if schema_text == "(no schema)":
        return False
    return any(
        output.alias_info is not None for output in ir.parse_schema(schema_text).returns
    )


def sources(node: Node, values: list[Value]) -> list[Value]:
    """The original inputs of a node with which its outputs may share memory."""
    kind = node.kind()
    shares = (
        kind in UNDECLARED_VIEWS
        or kind in _PRIM_READERS
        or kind in CONSTRUCTORS
        or copies_container(node)
        or _gives_alias(node.schema())
    )
    if (
        not shares
        or _copies(node)
        or not any(holds(output) for output in node.outputs())
    ):
        return []
    boxes = any(output.type().kind() != "TensorType" for output in node.outputs())
    if boxes:
        return [value for value in values if holds(value)]
    return [value for value in values if _holds_tensor(value.type())]


def _copies(node: Node) -> bool:
    """Whether a cast certainly copies (`resolve_casts`)."""
    copy = _argument(node, "copy") if node.kind() == "aten::to" else None
    return copy is not None and ir.constant(node.inputsAt(copy)) is True


def resolve_casts(graph: Graph, facts: Facts) -> None:
    """Set `copy` of each cast that certainly changes the dtype, and remove casts to the dtype that
    a tensor has, which return it. `facts` are those of the inputs.
    """
    for node in bottom_up(graph):
        facts.learn(node)
        if node.kind() != "aten::to":
            continue
        dtype, copy = _argument(node, "dtype"), _argument(node, "copy")
        if dtype is None or copy is None:
            continue
        before, after = facts.dtype(node.inputsAt(0)), ir.constant(node.inputsAt(dtype))
        if before is None or type(after) is not int:
            continue
        if after != code_of(before):
            node.replaceInput(copy, ir.insert_constant(graph, True, node))
        elif ir.constant(node.inputsAt(copy)) is False and all(
            map(ir.is_none, ir.inputs(node)[copy + 1 :])  # the memory format
        ):
            ir.bypass(node)


def _argument(node: Node, name: str) -> int | None:
    """The index of an argument, None if the operator has none of this name."""
    names = [argument.name for argument in ir.parse_schema(node.schema()).arguments]
    return names.index(name) if name in names else None


def _holds_tensor(kind_of: Type) -> bool:
    """Whether a value of this type may hold a tensor. A list of sizes shares no memory with
    tensors.
    """
    kind = kind_of.kind()
    if kind in ("OptionalType", "ListType"):
        return _holds_tensor(kind_of.getElementType())
    return kind in HOLDERS
