"""Flatten the inputs of a graph to tensors, and record the names from their structure."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from builder.errors import KeyMistake
from builder.graph_types import Graph, Node, Type, Value
from builder.lowering import ir
from builder.lowering.arguments import (
    DICT,
    FIXED,
    LIST,
    NUMBER,
    TENSOR,
    TUPLE,
    Part,
    describe,
)
from builder.lowering.emit import Emit
from builder.lowering.locations import source_range
from builder.lowering.passes import Context, lowering_pass


@lowering_pass("flatten-inputs", changes_interface=True)
def flatten_inputs(graph: Graph, context: Context) -> None:
    """Make every input of the graph a tensor.

    Tuples and named tuples become their elements (`state_0`, `state.hidden`). An Optional argument
    is bound to None unless an input is named after it or its elements; lists and dictionaries have
    the elements that inputs are named after (`boxes_0`, `features.p3`). A number with a named input
    becomes a tensor of one element. Other numbers, strings and lists are bound to the manifest's
    constant, else to their default in forward. A LoweringError names an argument of any other type.
    """
    names = context.inputs or [
        value.debugName().split(".")[0] for value in graph.inputs()
    ]
    declared = context.optional_inputs
    fixed = context.defaults
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
"""Operators that read a number argument from a tensor of one element."""


def _take_as_tensor(graph: Graph, index: int) -> None:
    """Replace the number at input `index` by a number that is read from a tensor input."""
    value = list(graph.inputs())[index]
    kind = value.type()
    if kind.kind() == "OptionalType":
        kind = kind.getElementType()
    value.setType(ir.TENSOR)
    if value.uses():
        first = ir.first_node(graph)
        emit = Emit(graph, first, _nearest(graph, value))
        cast = emit.op(_CASTS[kind.kind()], value, type=kind)
        value.replaceAllUsesAfterNodeWith(cast.node(), cast)


def _nearest(graph: Graph, value: Value) -> Node:
    """A user of the value with a source location; if there is none, any node that has one."""
    users = [use.user for use in value.uses()]
    for node in (*users, *ir.walk(graph)):
        if source_range(node):
            return node
    return users[0]


def checked(
    constants: Mapping[str, Any], graph: Graph, names: Sequence[str]
) -> dict[str, Any]:
    """The constants converted to the types of their arguments. Raises KeyMistake with every name
    that is not an argument of forward, and every value that does not fit its type.
    """
    types = {
        name: value.type() for name, value in zip(names, graph.inputs(), strict=False)
    }
    problems = []
    for name, value in constants.items():
        problem = _problem(name, value, types)
        if problem:
            problems.append(problem)
    if problems:
        raise KeyMistake(
            "constants", "; ".join(problems), "correct `constants` in the manifest"
        )
    return {name: _as_type(value, types[name]) for name, value in constants.items()}


def _problem(name: str, value: object, types: Mapping[str, Any]) -> str | None:
    """The problem of a constant, or None."""
    if name not in types:
        names = ", ".join(types) or "none"
        similar = difflib.get_close_matches(name, types, 1)
        hint = f"did you mean {similar[0]!r}?" if similar else f"its arguments: {names}"
        return f"constants names {name!r}, which is not an argument of forward ({hint})"
    kind = _of_optional(types[name])
    if value is None and kind is not types[name]:
        return None
    if not any(_accepts(alternative, value) for alternative in _alternatives(kind)):
        return f"constant {name}: {value!r} is not a value of type {types[name].annotation_str}"
    return None


def _accepts(kind: Type, value: object) -> bool:
    accepts = _PYTHON.get(kind.annotation_str.removeprefix("typing."))
    return accepts is not None and accepts(value)


def _alternatives(kind: Any) -> list[Type]:
    """The types of a union; of any other type the type alone."""
    if kind.kind() == "UnionType":
        return list(kind.containedTypes())
    return [kind]


def _of_optional(kind: Type) -> Type:
    if kind.kind() == "OptionalType":
        return kind.getElementType()
    return kind


def _as_type(value: Any, kind: Type) -> Any:
    """A constant converted to the type of its argument."""
    if value is None:
        return None
    kind = _of_optional(kind)
    if kind.annotation_str.endswith("List[float]"):
        return [float(element) for element in value]
    if kind.kind() == "FloatType":
        return float(value)
    return value


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
"""The accepted constants of an argument, by torch's annotation of its type."""


def _bind(graph: Graph, index: int, default: object) -> None:
    value = list(graph.inputs())[index]
    first = ir.first_node(graph)
    if value.uses():
        value.replaceAllUsesWith(ir.insert_constant(graph, default, first))
    graph.eraseInput(index)


def _flatten_container(graph: Graph, index: int, part: Part) -> None:
    """Build the tuple, list or dictionary at input `index` from new inputs."""
    value = list(graph.inputs())[index]
    count = len(list(graph.inputs()))
    added = [graph.addInput(inner.name.replace(".", "_")) for _, inner in part.parts]
    for new, (key, _) in zip(added, part.parts, strict=True):
        new.setType(_element_type(part, key))
    first = ir.first_node(graph)
    packed = _construct(graph, part, added, first)
    value.replaceAllUsesWith(packed.output())
    new_inputs = range(count, count + len(added))
    graph.permuteInputs([*range(index), *new_inputs, *range(index, count)])
    graph.eraseInput(index + len(added))
    for _, inner in part.parts:
        _flatten_input(graph, index, inner)
        index += len(list(inner.names))


def _element_type(part: Part, key: str | int) -> Any:
    if part.form == LIST:
        return part.type.getElementType()
    if part.form == DICT:
        return part.type.getValueType()
    return part.type.elements()[[name for name, _ in part.parts].index(key)]


def _construct(graph: Graph, part: Part, values: list[Value], first: Node) -> Node:
    if part.form == DICT:
        keys = [ir.insert_constant(graph, key, first) for key, _ in part.parts]
        pairs = zip(keys, values, strict=True)
        values = [key_or_value for pair in pairs for key_or_value in pair]
    kind = {TUPLE: "prim::TupleConstruct", LIST: "prim::ListConstruct"}
    return ir.insert(
        graph, kind.get(part.form, "prim::DictConstruct"), values, first, [part.type]
    )
