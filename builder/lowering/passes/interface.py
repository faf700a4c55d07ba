"""Flatten the graph's inputs and outputs to plain tensors, and remember the names that their
structure gives.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from builder.errors import LoweringError
from builder.graph_types import Graph, Node, Type, Value
from builder.lowering import ir
from builder.lowering.arguments import (
    DICT,
    FIXED,
    LIST,
    NUMBER,
    PACKED_SEQUENCE,
    TENSOR,
    TUPLE,
    Part,
    describe,
    field_names,
    join,
)
from builder.lowering.locations import source_line
from builder.lowering.passes import Context, lowering_pass


@lowering_pass("flatten-inputs", changes_interface=True)
def flatten_inputs(graph: Graph, context: Context) -> None:
    """Make every input of the graph a tensor.

    Tuples and named tuples become their elements (`state_0`, `state.hidden`). An Optional argument
    is bound to None unless an input is named after it or its elements; lists and dictionaries have
    the elements that inputs are named after (`boxes_0`, `features.p3`). A number that is named
    becomes a tensor of one element. Other numbers, strings and lists are bound to the manifest's
    constant, else to the default that forward gives them. A LoweringError names an argument that
    is none of these.
    """
    names = context.inputs or [value.debugName().split(".")[0] for value in graph.inputs()]
    declared, fixed = context.optional_inputs, context.defaults
    parts = [
        describe(name, value.type(), declared, fixed)
        for name, value in zip(names, list(graph.inputs()), strict=True)
    ]
    index = 0
    for part in parts:
        _flatten_input(graph, index, part)
        index += len(list(part.names))
    context.inputs[:] = [name for part in parts for name in part.names]


def _flatten_input(graph: Graph, index: int, part: Part) -> None:
    """Replace input `index` by the tensors of its parts."""
    value = list(graph.inputs())[index]
    if part.form == FIXED:
        _bind(graph, index, part.value)
    elif part.form == NUMBER:
        _take_as_tensor(graph, index)
    elif part.form == TENSOR:
        if value.type().kind() == "OptionalType":
            value.setType(part.type)
    else:
        _flatten_container(graph, index, part)


_CASTS = {
    "FloatType": "aten::Float",
    "IntType": "aten::Int",
    "BoolType": "aten::Bool",
    "NumberType": "aten::item",
}
"""What reads an argument's number from a tensor of one element."""


def _take_as_tensor(graph: Graph, index: int) -> None:
    """Replace the number at input `index` by one that is read from a tensor input."""
    value = list(graph.inputs())[index]
    kind = value.type()
    if kind.kind() == "OptionalType":
        kind = kind.getElementType()
    value.setType(ir.TENSOR)
    users = [use.user for use in value.uses()]
    if users:
        first = next(iter(graph.nodes()), graph.return_node())
        cast = ir.insert(graph, _CASTS[kind.kind()], [value], first, [kind], origin=users[0])
        value.replaceAllUsesAfterNodeWith(cast, cast.output())


def checked(constants: Mapping[str, Any], graph: Graph, names: Sequence[str]) -> dict[str, Any]:
    """The constants as their arguments take them. Raises LoweringError with every name that is no
    argument of forward, and every value that its type does not take.
    """
    types = {name: value.type() for name, value in zip(names, graph.inputs(), strict=False)}
    problems = [_problem(name, value, types) for name, value in constants.items()]
    if found := [problem for problem in problems if problem]:
        raise LoweringError("; ".join(found), fix="correct `constants` in the manifest")
    return {name: _taken(value, types[name]) for name, value in constants.items()}


def _problem(name: str, value: object, types: Mapping[str, Any]) -> str | None:
    """What is wrong with a constant."""
    if name not in types:
        known = ", ".join(types) or "none"
        near = difflib.get_close_matches(name, types, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"its arguments: {known}"
        return f"constants names {name!r}, which is no argument of forward ({hint})"
    kind = _of_optional(types[name])
    if value is None and kind is not types[name]:
        return None
    accepts = _PYTHON.get(kind.annotation_str.removeprefix("typing."))
    if accepts is None or not accepts(value):
        return f"constant {name}: {value!r} is no value of type {types[name].annotation_str}"
    return None


def _of_optional(kind: Type) -> Type:
    return kind.getElementType() if kind.kind() == "OptionalType" else kind


def _taken(value: Any, kind: Type) -> Any:
    """A constant as an argument of this type takes it."""
    if value is None:
        return None
    kind = _of_optional(kind)
    if kind.annotation_str.endswith("List[float]"):
        return [float(element) for element in value]
    return float(value) if kind.kind() == "FloatType" else value


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_float(value: object) -> bool:
    return isinstance(value, float) or _is_int(value)


def _list_of(element: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(element, value))


_PYTHON: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "float": _is_float,
    "number": _is_float,
    "Union[complex, float, int]": _is_float,
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "List[int]": _list_of(_is_int),
    "List[float]": _list_of(_is_float),
    "List[bool]": _list_of(lambda value: isinstance(value, bool)),
    "List[str]": _list_of(lambda value: isinstance(value, str)),
}
"""Which constants an argument of a type takes, by torch's annotation of the type."""


def _bind(graph: Graph, index: int, default: object) -> None:
    value = list(graph.inputs())[index]
    first = next(iter(graph.nodes()), graph.return_node())
    if value.hasUses() if hasattr(value, "hasUses") else bool(value.uses()):
        value.replaceAllUsesWith(ir.insert_constant(graph, default, first))
    graph.eraseInput(index)


def _flatten_container(graph: Graph, index: int, part: Part) -> None:
    """Build the tuple, list or dictionary at input `index` of inputs of its own."""
    value = list(graph.inputs())[index]
    count = len(list(graph.inputs()))
    added = [graph.addInput(inner.name.replace(".", "_")) for _, inner in part.parts]
    for new, (place, _) in zip(added, part.parts, strict=True):
        new.setType(_element_type(part, place))
    first = next(iter(graph.nodes()), graph.return_node())
    packed = _construct(graph, part, added, first)
    value.replaceAllUsesWith(packed.output())
    graph.permuteInputs([*range(index), *range(count, count + len(added)), *range(index, count)])
    graph.eraseInput(index + len(added))
    for _, inner in part.parts:
        _flatten_input(graph, index, inner)
        index += len(list(inner.names))


def _element_type(part: Part, place: str | int) -> Any:
    if part.form == LIST:
        return part.type.getElementType()
    if part.form == DICT:
        return part.type.getValueType()
    return part.type.elements()[[name for name, _ in part.parts].index(place)]


def _construct(graph: Graph, part: Part, values: list[Value], first: Node) -> Node:
    if part.form == DICT:
        keys = [ir.insert_constant(graph, key, first) for key, _ in part.parts]
        values = [value for pair in zip(keys, values, strict=True) for value in pair]
    kind = {TUPLE: "prim::TupleConstruct", LIST: "prim::ListConstruct"}
    return ir.insert(graph, kind.get(part.form, "prim::DictConstruct"), values, first, [part.type])


@lowering_pass("flatten-outputs", changes_interface=True)
def flatten_outputs(graph: Graph, context: Context) -> None:
    """Make every output of the graph a tensor, named by the structure that held it.

    Tuples and lists give indices (`boxes_0`), dictionaries their keys and named tuples their fields
    (`encoder_out.hidden`). A number becomes a 0-d tensor, None is left out. A list or dictionary
    whose length is not known is a LoweringError.
    """
    values = list(graph.outputs())
    prefix = [""] if len(values) == 1 else [f"output_{i}" for i in range(len(values))]
    flat = [
        pair
        for value, name in zip(values, prefix, strict=True)
        for pair in _leaves(graph, value, name)
    ]
    for _ in values:
        graph.eraseOutput(0)
    for _, value in flat:
        graph.registerOutput(value)
    context.outputs[:] = [name or "output" for name, _ in flat]


def _leaves(graph: Graph, value: Value, name: str) -> Iterator[tuple[str, Any]]:
    """The tensors inside one output with their names, in order."""
    value = _unpacked(value)
    kind, end = value.type().kind(), graph.return_node()
    if kind == "TensorType":
        yield name, value
    elif kind == "OptionalType" and not ir.is_none(value):
        yield from _leaves(graph, _certain(graph, value, name), name)
    elif kind == "TupleType" and field_names(value.type()) == PACKED_SEQUENCE:
        raise LoweringError(
            f"output {name or 'output'!r} is a PackedSequence: how many rows it has depends on the"
            " data",
            where=source_line(value.node()),
            fix="return pad_packed_sequence(packed, total_length=x.size(1)) of it",
        )
    elif kind == "TupleType":
        elements = _elements(graph, value, "prim::TupleConstruct", "prim::TupleUnpack")
        fields = field_names(value.type()) or range(len(elements))
        yield from _children(graph, zip(fields, elements, strict=True), name)
    elif kind in ("ListType", "DictType"):
        yield from _children(graph, _built(graph, value, name), name)
    elif kind in ("IntType", "FloatType", "BoolType", "NumberType"):
        tensor = ir.insert(graph, "prim::NumToTensor", [value], end, origin=value.node())
        yield name, tensor.output()
    elif kind != "NoneType" and not ir.is_none(value):
        raise _not_a_tensor(value, name)


def _certain(graph: Graph, value: Value, name: str) -> Value:
    """An optional value without its None. Raises LoweringError where it may be None."""
    if _may_be_none(value):
        raise LoweringError(
            f"output {name or 'output'!r} is None on one path through forward, and a tensor on"
            " another",
            where=source_line(value.node()),
            fix="return a tensor on every path, or return it on none",
        )
    types = [value.type().getElementType()]
    end, origin = graph.return_node(), value.node()
    return ir.insert(graph, "prim::unchecked_cast", [value], end, types, origin).output()


def _may_be_none(value: Value) -> bool:
    """Whether a branch gives None for a value, or for the element of a tuple that it is."""
    node = value.node()
    if node.kind() == "prim::If":
        ends = [list(block.outputs())[value.offset()] for block in node.blocks()]
        return any(ir.is_none(end) or _may_be_none(end) for end in ends)
    if node.kind() in ("prim::TupleUnpack", "prim::TupleIndex"):
        return any(
            ir.is_none(element) or _may_be_none(element)
            for element in _tuple_elements(node.inputsAt(0), _index_in_tuple(value))
        )
    return False


def _index_in_tuple(value: Value) -> int | None:
    node = value.node()
    if node.kind() == "prim::TupleUnpack":
        return int(value.offset())
    index = ir.constant(node.inputsAt(1))
    return index if isinstance(index, int) else None


def _tuple_elements(value: Value, index: int | None) -> list[Value]:
    """What the branches of ifs put at an index of a tuple."""
    node = value.node()
    if node.kind() == "prim::TupleConstruct" and index is not None:
        return [node.inputsAt(index)]
    if node.kind() != "prim::If":
        return []
    ends = [list(block.outputs())[value.offset()] for block in node.blocks()]
    return [element for end in ends for element in _tuple_elements(end, index)]


def _unpacked(value: Value) -> Value:
    """The value itself where a tuple is built and taken apart again: a None in one is known to be
    None then.
    """
    node = value.node()
    if node.kind() != "prim::TupleUnpack" or node.input().node().kind() != "prim::TupleConstruct":
        return value
    place = [output.debugName() for output in node.outputs()].index(value.debugName())
    return _unpacked(list(node.input().node().inputs())[place])


def _children(graph: Graph, children: Any, name: str) -> Iterator[tuple[str, Any]]:
    for part, child in children:
        yield from _leaves(graph, child, join(name, part))


def _elements(graph: Graph, value: Value, built_by: str, unpack: str) -> list[Value]:
    node = value.node()
    if node.kind() == built_by:
        return list(node.inputs())
    return ir.outputs(
        ir.insert(graph, unpack, [value], graph.return_node(), value.type().elements(), origin=node)
    )


def _built(graph: Graph, value: Value, name: str) -> list[tuple[Any, Any]]:
    """Parts and values of a list or dictionary that is a constant, or built in the graph with a
    known number of elements.
    """
    node, known = value.node(), ir.constant(value)
    if isinstance(known, list):
        return list(enumerate(ir.insert_constants(graph, known, graph.return_node())))
    if node.kind() == "prim::ListConstruct":
        return list(enumerate(node.inputs()))
    if node.kind() == "prim::DictConstruct":
        keys, values = ir.inputs(node)[::2], ir.inputs(node)[1::2]
        if all(ir.is_constant(key) for key in keys):
            return [(_part(key.toIValue()), child) for key, child in zip(keys, values, strict=True)]
    raise _not_a_tensor(value, name)


def _part(key: object) -> str | int:
    """A dictionary's key as a part of a name."""
    return key if type(key) is int and key >= 0 else str(key)


def _not_a_tensor(value: Value, name: str) -> LoweringError:
    return LoweringError(
        f"output {name or 'output'!r} is a {value.type().annotation_str} whose elements are not"
        " known before it runs",
        where=source_line(value.node()),
        fix="return a tensor, or a tuple or dictionary of tensors with a fixed number of elements",
    )
