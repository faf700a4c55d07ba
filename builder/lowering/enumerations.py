"""Resolve values of enumerations. A file has their class as TorchScript only, so Python cannot read
such a value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from builder.errors import LoweringError
from builder.graph_types import Graph, Node, Type, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.locations import source_line

_MEMBER = re.compile(r"= prim::Constant\[value=(?P<name>[\w.]+)\]")
_LIST = re.compile(r"= prim::Constant\[value=\[(?P<names>[\w., ]+)\]\]")
_COMPARISONS = ("aten::eq", "aten::ne")
_IDENTITIES = ("aten::__is__", "aten::__isnot__")
_READS_NUMBER = frozenset(
    """
    prim::If prim::Loop prim::ListConstruct prim::ListUnpack prim::TupleConstruct prim::TupleUnpack
    prim::TupleIndex prim::unchecked_cast prim::Uninitialized aten::__getitem__ aten::append
    aten::len aten::_unwrap_optional aten::eq aten::ne aten::__is__ aten::__isnot__ prim::Constant
    """.split()
)
"""Operators that compute the same from numbers as from the members that these stand for."""


def values(graph: Graph) -> list[Value]:
    """The values of enumerations, and the containers of such values, that other nodes read."""
    if "Enum<" not in str(graph):  # far faster than a look at each type
        return []
    return [
        value
        for node in ir.walk(graph)
        for value in ir.outputs(node)
        if _has_member(value.type()) and value.uses()
    ]


def resolve(graph: Graph) -> None:
    """Let torch evaluate the nodes that read them. A member that is chosen at run time becomes its
    number. Raises LoweringError for an operator that depends on more than which member it is.
    """
    if not values(graph):
        return
    _fold(graph)
    if not values(graph):
        return
    for node in ir.nodes_of(graph, "prim::Constant"):
        _unpack(graph, node)
    _fold(graph)
    for node in ir.nodes_of(graph, "prim::EnumValue"):
        _choose_value(graph, node)
    _fold(graph)
    for node in ir.walk(graph):
        _check(node)
    _number(graph)


def _fold(graph: Graph) -> None:
    ir.C._jit_pass_constant_propagation_immutable_types(graph)
    ir.C._jit_pass_dce(graph)


def _has_member(kind: Type) -> bool:
    return "Enum<" in kind.str()


def _name(constant: Node) -> str | None:
    """The class and name of the member that a constant has."""
    if constant.output().type().kind() != "EnumType":
        return None
    match = _MEMBER.search(str(constant))
    return match["name"] if match else None


def _unpack(graph: Graph, constant: Node) -> None:
    """Replace a constant list of members by a list of constants, which torch evaluates."""
    kind: Any = constant.output().type()
    match = _LIST.search(str(constant))
    if kind.kind() != "ListType" or not _has_member(kind) or not match:
        return
    last = constant
    values = []
    for index in range(match["names"].count(",") + 1):
        last = _element(graph, constant, index).insertAfter(last)
        values.append(last.output())
    emit = Emit(graph, constant)
    unpacked = emit.list(values, kind.getElementType()).node()
    unpacked.moveAfter(last)
    constant.output().replaceAllUsesWith(unpacked.output())


def _element(graph: Graph, constant: Node, index: int) -> Node:
    """A new constant of one element of a constant list."""
    scratch: Any = ir.C.Graph()
    kind: Any = constant.output().type()
    copy = scratch.appendNode(scratch.createClone(constant, lambda value: value))
    emit = Emit(scratch, scratch.return_node())
    element = emit.op(
        "aten::__getitem__", copy.output(), index, type=kind.getElementType()
    )
    scratch.registerOutput(element)
    ir.C._jit_pass_constant_propagation(scratch)
    (output,) = scratch.outputs()
    return graph.createClone(output.node(), lambda value: value)


def _members(graph: Graph) -> dict[str, Node]:
    """A constant of each member in the graph, by class and name. Values can only be these."""
    members: dict[str, Node] = {}
    for node in ir.nodes_of(graph, "prim::Constant"):
        name = _name(node)
        if name:
            members.setdefault(name, node)
    return members


def _choose_value(graph: Graph, node: Node) -> None:
    """Replace a read of a member's value by a choice between the values of the members of its class
    that are in the graph. torch evaluates each of these.
    """
    kind = node.inputsAt(0).type()
    constants = []
    for constant in _members(graph).values():
        if constant.output().type().str() == kind.str():
            first: Any = ir.first_node(graph)
            copy = graph.createClone(constant, lambda value: value)
            constants.append(copy.insertBefore(first).output())
    if constants:
        ir.replace(node, [_choice(graph, node, constants, node)])


def _choice(graph: Graph, node: Node, members: Sequence[Value], before: Node) -> Value:
    member, *others = members
    types = [node.output().type()]
    if not others:
        return ir.insert(graph, node.kind(), [member], before, types, node).output()
    operands = [node.inputsAt(0), member]
    is_member = ir.insert(graph, "aten::eq", operands, before, [ir.C.BoolType.get()])
    branch = ir.insert(graph, "prim::If", [is_member.output()], before, types, node)
    for rest in ([member], others):
        block = branch.addBlock()
        value = _choice(graph, node, rest, block.returnNode())
        block.registerOutput(value)
    return branch.output()


def _check(node: Node) -> None:
    """Raise LoweringError for a node that would compute something else from numbers."""
    values = [*node.inputs(), *node.outputs()]
    for block in node.blocks():
        values += [*block.inputs(), *block.outputs()]
    if not any(_has_member(value.type()) for value in values):
        return
    allowed = node.kind() in _READS_NUMBER
    if node.kind() == "prim::Constant":
        allowed = _name(node) is not None
    elif node.kind() in _IDENTITIES:
        # torch compares the objects, of which a member may have several
        kinds = {value.type().kind() for value in node.inputs()}
        allowed = "NoneType" in kinds
    if not allowed or not all(_is_plain(value.type()) for value in values):
        raise LoweringError(
            "a value of an enumeration is chosen at run time, and is used by"
            f" {node.kind()}",
            where=source_line(node),
            fix="use numbers or strings in place of the enumeration",
        )


def _is_plain(kind: Type) -> bool:
    """Whether numbers can replace the members in a type. In a named tuple they cannot."""
    if kind.kind() == "TupleType" and not kind.annotation_str.startswith("Tuple["):
        return not _has_member(kind)
    if kind.kind() in ("ClassType", "DictType", "FutureType"):
        return not _has_member(kind)
    return all(map(_is_plain, kind.containedTypes()))


def _number(graph: Graph) -> None:
    """Replace each member by its number, and the types of all values that hold members."""
    numbers = {name: index for index, name in enumerate(_members(graph))}
    for node in ir.nodes_of(graph, "prim::Constant"):
        name = _name(node)
        if name:
            number = ir.insert_constant(graph, numbers[name], node)
            ir.replace(node, [number])
    compared = []
    for node in ir.walk(graph):
        if node.kind() in _COMPARISONS and _has_member(node.inputsAt(0).type()):
            compared.append(node)
        created = ir.outputs(node)
        for block in node.blocks():
            created += block.inputs()
        for value in created:
            if _has_member(value.type()):
                value.setType(_with_numbers(value.type()))
    for node in compared:
        # torch finds the operator by the types of the inputs, once for each node
        types = [node.output().type()]
        new = ir.insert(graph, node.kind(), node.inputs(), node, types)
        ir.replace(node, [new.output()])


def _with_numbers(kind: Any) -> Any:
    if kind.kind() == "EnumType":
        return ir.C.IntType.get()
    if kind.kind() == "TupleType":
        return ir.C.TupleType([_with_numbers(part) for part in kind.elements()])
    if kind.kind() == "OptionalType":
        return ir.C.OptionalType(_with_numbers(kind.getElementType()))
    if kind.kind() == "ListType":
        return ir.C.ListType(_with_numbers(kind.getElementType()))
    return kind
