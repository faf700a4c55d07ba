"""The tensors in the arguments of a module, and their names.

Lowering, goldens and conversion all flatten arguments with `describe`, so that they agree. The
input names of the manifest resolve what a type does not determine: an Optional argument is passed
if an input has its name, and a list or dictionary has the elements that inputs are named after.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.errors import LoweringError
from builder.graph_types import Type
from builder.names import join

TENSOR = "tensor"
NUMBER = "number"
TUPLE = "tuple"
LIST = "list"
DICT = "dict"
FIXED = "fixed"
NUMBERS = frozenset(["FloatType", "IntType", "BoolType", "NumberType"])
"""Types of number arguments. An input with one element passes the number."""
_FIELDS = re.compile(r"^NamedTuple\((.*)\)$", re.DOTALL)
_INDEX = re.compile(r"_\d+$")


@dataclass(frozen=True)
class Part:
    """An argument, or an element of one. `form` is one of the constants above, `type` torch's type
    without Optional, `parts` the elements by index, field or key, and `value` the value of a fixed
    argument.
    """

    form: str
    name: str
    type: Any
    parts: Sequence[tuple[str | int, Part]] = ()
    value: Any = None

    @property
    def names(self) -> Iterator[str]:
        """The names of its tensors, in order."""
        if self.form in (TENSOR, NUMBER):
            yield self.name
        for _, part in self.parts:
            yield from part.names


def describe(
    name: str, kind: Type, declared: Collection[str], fixed: Mapping[str, Any]
) -> Part:
    """The argument `name` of torch type `kind`: `declared` are the names of the inputs in order,
    `fixed` the values of arguments that have one, by name.

    Elements of tuples and lists have indices (`state_0`), those of named tuples and dictionaries
    their field or key (`state.hidden`). Raises LoweringError for an argument that cannot be passed
    as tensors.
    """
    form = kind.kind()
    if form == "TensorType":
        return Part(TENSOR, name, kind)
    if form == "OptionalType":
        inner = _if_declared(name, kind.getElementType(), declared, fixed)
        return inner or Part(FIXED, name, kind, value=fixed.get(name))
    if form in NUMBERS and name in declared:
        return Part(NUMBER, name, kind)
    if form == "TupleType" and name not in fixed:
        return _tuple(name, kind, declared, fixed)
    if name in fixed:
        return Part(FIXED, name, kind, value=fixed[name])
    if form == "ListType" and (elements := tuple(_list(name, kind, declared, fixed))):
        return Part(LIST, name, kind, elements)
    if form == "DictType" and (entries := tuple(_dict(name, kind, declared, fixed))):
        return Part(DICT, name, kind, entries)
    raise _not_a_tensor(name, kind)


def _if_declared(
    name: str,
    kind: Type,
    declared: Collection[str],
    fixed: Mapping[str, Any],
) -> Part | None:
    """The part, if it has tensors and an input is named after it."""
    open_values = {
        argument: value for argument, value in fixed.items() if argument != name
    }
    try:
        part = describe(name, kind, declared, open_values)
    except LoweringError:
        return None
    inputs = {name, *part.names} & set(declared)
    if inputs and part.form != FIXED:
        return part
    return None


def _tuple(
    name: str, kind: Type, declared: Collection[str], fixed: Mapping[str, int | None]
) -> Part:
    fields = field_names(kind)
    if fields == PACKED_SEQUENCE:
        raise LoweringError(
            f"argument {name!r} of forward is a PackedSequence: its number of rows depends on the "
            "data",
            where=f"forward({name}: PackedSequence)",
            fix="pass the padded tensor and the lengths, and call pack_padded_sequence in forward",
        )
    keys: Sequence[str | int] = fields or range(len(kind.elements()))
    pairs = zip(keys, kind.elements(), strict=True)
    parts = [
        (key, describe(join(name, key), inner, declared, fixed)) for key, inner in pairs
    ]
    return Part(TUPLE, name, kind, tuple(parts))


def _list(
    name: str, kind: Type, declared: Collection[str], fixed: Mapping[str, Any]
) -> Iterator[tuple[str | int, Part]]:
    """As many elements as inputs are named after."""
    index = 0
    while part := _if_declared(
        join(name, index), kind.getElementType(), declared, fixed
    ):
        yield index, part
        index += 1


def _dict(
    name: str, kind: Any, declared: Collection[str], fixed: Mapping[str, Any]
) -> Iterator[tuple[str | int, Part]]:
    """The keys that inputs are named after, in the order of the inputs."""
    value = kind.getValueType()
    if kind.getKeyType().kind() != "StringType":
        return
    seen: set[str] = set()
    for input_name in declared:
        if input_name in seen or not input_name.startswith(f"{name}."):
            continue
        for key in _possible_keys(input_name.removeprefix(f"{name}."), value):
            if part := _if_declared(join(name, key), value, declared, fixed):
                seen.update(part.names)
                yield key, part
                break


def _possible_keys(suffix: str, value: Type) -> Iterator[str]:
    """The keys that the name of an input may have: what follows a key are indices, or a field or
    key of its value.
    """
    if value.kind() == "DictType" or field_names(value):
        yield suffix.partition(".")[0]
    elif value.kind() == "TensorType":
        yield suffix
    else:
        while match := _INDEX.search(suffix):
            suffix = suffix[: match.start()]
            yield suffix


def contains(name: str, candidate: str) -> bool:
    """Whether `candidate` is this name, or that of an element below it."""
    return candidate == name or candidate.startswith((f"{name}.", f"{name}_"))


PACKED_SEQUENCE = ["data", "batch_sizes", "sorted_indices", "unsorted_indices"]
"""The fields of torch.nn.utils.rnn.PackedSequence."""


def field_names(tuple_type: Type) -> list[str] | None:
    """The field names of a named tuple's type, None for a plain tuple. torch shows them in the
    type's text only.
    """
    match = _FIELDS.match(tuple_type.str())
    if not match:
        return None
    depth = 0
    names = []
    start = 0
    text = match[1] + ","
    for at, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            names.append(text[start:at].split(" : ")[0].strip())
            start = at + 1
    return names


def _not_a_tensor(name: str, kind: Type) -> LoweringError:
    form, text = kind.kind(), kind.annotation_str
    fix = f"fix its value in the manifest (constants: {{{name}: ...}})"
    if form in NUMBERS:
        fix = f"list it in the manifest as an input of shape [], or {fix}"
    elif form == "DictType" and "Tensor" in text:
        fix = f"name its elements in the manifest ({name}.KEY for each key)"
    elif form == "ListType" and "Tensor" in text:
        fix = f"name its elements in the manifest ({name}_0, {name}_1, ...)"
    return LoweringError(
        f"argument {name!r} of forward has the type {text}, and an endpoint takes tensors only",
        where=f"forward({name}: {text})",
        fix=f"{fix}, or script a wrapper whose forward takes tensors",
    )
