"""Flatten the graph's outputs to tensors, and record the names from their structure.

An output that is None on one path has two tensors: its value, which is empty where it is None, and
a flag, which is true where it is a tensor. Callers leave out outputs whose flag is false. A list of
unknown length has as many such outputs as its declared largest length, and one more bool tensor,
which is true where the list is longer.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from builder.errors import KeyMistake, LoweringError, UnboundedListError
from builder.lowering import ir
from builder.lowering.arguments import PACKED_SEQUENCE, field_names
from builder.lowering.emit import Emit
from builder.lowering.locations import located, source_line
from builder.lowering.passes import Context, filled, lowering_pass
from builder.lowering.passes.sizes import list_returned_sizes
from builder.names import join, served_name, unique_name


@dataclass(frozen=True)
class Leaf:
    """One tensor of the result. `flag` is a bool tensor without axes; None if the value is always a
    tensor. `where` is the source line that decides, and `at` are its indices in the structure. A
    leaf that is `too_long` is not a tensor of the result: its flag is true where the list of that
    name is longer than declared. Leaves of one `group` are at the same location in each element of
    such a list.
    """

    value: Any
    flag: Any = None
    where: str = ""
    at: tuple[int, ...] = ()
    too_long: str = ""
    group: str = ""


Leaves = Mapping[str, Leaf]
TOO_LONG = "is_too_long"
"""The suffix of the output that shows whether a list is longer than declared."""


@lowering_pass("flatten-outputs", changes_interface=True)
def flatten_outputs(graph: Any, context: Context) -> None:
    """Make every output of the graph a tensor, named by the structure that held it.

    Tuples and lists give indices (`boxes_0`), dictionaries their keys and named tuples their fields
    (`encoder_out.hidden`). A number becomes a 0-d tensor, None is left out. What a branch leaves
    out, or gives as None, gets a flag as a further output, behind all others. A list whose length
    is not known has the elements that `max_lengths` declares, else it is a LoweringError, as is a
    dictionary whose keys are not known.
    """
    list_returned_sizes(graph, context)
    values = list(graph.outputs())
    end = graph.return_node()
    prefix = [""] if len(values) == 1 else [f"output_{i}" for i in range(len(values))]
    bounds = Bounds(context.max_lengths)
    leaves = [
        (leaf_name or "output", leaf)
        for value, name in zip(values, prefix, strict=True)
        for leaf_name, leaf in _leaves(graph, value, name, end, bounds)
    ]
    bounds.check()
    flat = [(name, leaf) for name, leaf in leaves if not leaf.too_long]
    too_long = {leaf.too_long: leaf.flag for _, leaf in leaves if leaf.too_long}
    flagged = {name: leaf for name, leaf in flat if leaf.flag is not None}
    hidden = (*(leaf.flag for leaf in flagged.values()), *too_long.values())
    _replace_outputs(graph, (*(leaf.value for _, leaf in flat), *hidden))
    if hidden:
        # torch's tuple lowering fails on the containers of None
        ir.C._jit_pass_dce(graph)
    _record_names(context, flat, flagged, too_long)


def _replace_outputs(graph: Any, values: Sequence[Any]) -> None:
    for _ in list(graph.outputs()):
        graph.eraseOutput(0)
    for value in values:
        graph.registerOutput(value)


def _record_names(
    context: Context,
    flat: Sequence[tuple[str, Leaf]],
    flagged: Leaves,
    too_long: Mapping[str, Any],
) -> None:
    """Store the names of the outputs `flat` and of their flags, in the order of the graph."""
    names = [name for name, _ in flat]
    flags = flag_names(flagged, names)
    length_flags = flag_names(too_long, [*names, *flags.values()], TOO_LONG)
    context.outputs[:] = [*names, *flags.values(), *length_flags.values()]
    context.flags.update(flags)
    context.decided_at.update({name: leaf.where for name, leaf in flagged.items()})
    context.too_long.update(length_flags)
    context.groups.update({name: leaf.group for name, leaf in flat if leaf.group})


def flag_names(flagged: Any, used: Any, suffix: str = "is_present") -> dict[str, str]:
    """A name for the flag of each output, that is valid at an endpoint and that no other output
    has.
    """
    names: dict[str, str] = {}
    for name in flagged:
        flag = f"{served_name(name)}_{suffix}"
        names[name] = unique_name(flag, {*used, *names.values()}, separator="")
    return names


class Bounds:
    """The declared largest lengths of lists, by the name of the list."""

    def __init__(self, declared: Mapping[str, int]) -> None:
        self.declared = declared
        self.lists = dict[str, None]()

    def of(self, kind: Any, name: str) -> int | None:
        """The largest length of the list `name`; None where none is declared."""
        if kind.kind() != "ListType":
            return None
        self.lists[name or "output"] = None
        return self.declared.get(name or "output")

    def check(self) -> None:
        """Raise KeyMistake for a declared name that no list has."""
        for name in self.declared:
            if name not in self.lists:
                similar = difflib.get_close_matches(name, self.lists, 1)
                lists = ", ".join(self.lists) or "none"
                hint = f"its lists: {lists}"
                if similar:
                    hint = f"did you mean {similar[0]!r}?"
                raise KeyMistake(
                    "max_lengths",
                    f"max_lengths names {name!r}, and forward returns no list of that name"
                    f" ({hint})",
                    "correct `max_lengths` in the manifest",
                )


def _leaves(
    graph: Any, value: Any, name: str, end: Any, bounds: Bounds
) -> Iterator[tuple[str, Leaf]]:
    """The tensors inside one output with their names, in order. New nodes are inserted before
    `end`.
    """
    value = _unpacked(graph, value)
    kind = value.type().kind()
    if ir.is_none(value) or kind == "NoneType":
        return
    if kind == "TensorType":
        yield name, Leaf(value)
    elif (most := bounds.of(value.type(), name)) is not None:
        yield from _bounded(graph, value, name, end, bounds, most)
    elif (
        kind in ("ListType", "DictType")
        and (elements := filled.elements(graph, value, end)) != []
    ):
        yield from _filled(value, name, elements)
    elif _differs(value):
        yield from (_by_branch(graph, value, name, bounds) or {}).items()
    elif kind == "OptionalType":
        yield from _of_optional(graph, value, name, end, bounds)
    elif kind == "TupleType":
        yield from _of_tuple(graph, value, name, end, bounds)
    elif kind in ("ListType", "DictType"):
        yield from _of_container(graph, value, name, end, bounds)
    elif kind in ("IntType", "FloatType", "BoolType", "NumberType"):
        yield name, Leaf(_as_tensor(graph, value, end, value.node()))
    else:
        raise _not_a_tensor(value, name)


def _as_tensor(graph: Any, number: Any, before: Any, origin: Any) -> Any:
    """The number as a 0-d tensor."""
    return Emit(graph, before, origin).op("prim::NumToTensor", number)


def _as_type(graph: Any, value: Any, kind: Any, before: Any) -> Any:
    emit = Emit(graph, before, value.node())
    return emit.op("prim::unchecked_cast", value, type=kind)


def _of_tuple(
    graph: Any, value: Any, name: str, end: Any, bounds: Bounds
) -> Iterator[tuple[str, Leaf]]:
    names = field_names(value.type())
    if names == PACKED_SEQUENCE:
        raise LoweringError(
            f"output {name or 'output'!r} is a PackedSequence: how many rows it has depends on the"
            " data",
            where=source_line(value.node()),
            fix="return pad_packed_sequence(packed, total_length=x.size(1)) of it",
        )
    elements = _elements(graph, value, end)
    pairs = zip(names or range(len(elements)), elements, strict=True)
    yield from _children(graph, pairs, name, end, bounds)


def _of_container(
    graph: Any, value: Any, name: str, end: Any, bounds: Bounds
) -> Iterator[tuple[str, Leaf]]:
    """The tensors inside a list or dictionary."""
    built = _built(graph, value, end)
    if built is not None:
        yield from _children(graph, built, name, end, bounds)
        return
    is_dictionary = value.type().kind() == "DictType"
    yield from _filled(
        value, name, filled.by_keys(graph, value, end) if is_dictionary else None
    )


def _differs(value: Any) -> bool:
    """Whether a value comes from branches that may return different structures."""
    if value.node().kind() != "prim::If":
        return False
    kind = value.type().kind()
    text = value.type().annotation_str
    if kind == "OptionalType":
        element = value.type().getElementType().kind()
        return element != "TensorType" or _may_be_none(value)
    if kind == "TupleType":
        return any(word in text for word in ("Optional", "List", "Dict"))
    return kind in ("ListType", "DictType")


def _bounded(
    graph: Any, value: Any, name: str, end: Any, bounds: Bounds, most: int
) -> Iterator[tuple[str, Leaf]]:
    """The leaves of the first `most` elements of a list, each with a flag, and the leaf that shows
    whether the list is longer.
    """
    origin = located(value)
    inner = value.type().getElementType()
    where = source_line(origin)
    list_name = name or "output"
    length = Emit(graph, end, origin).op("aten::len", value, type=ir.INT)
    for index in range(most):
        node = _if_longer(graph, length, index, end, origin)
        then = ir.first_block(node).returnNode()
        element = Emit(graph, then, origin).op(
            "aten::__getitem__", value, index, type=inner
        )
        for path, leaf in list(
            _leaves(graph, element, join(name, index), then, bounds)
        ):
            merged = _merged(graph, node, [leaf, None])
            group = (
                f"{list_name}_*{(leaf.group or path).removeprefix(join(name, index))}"
            )
            at = (index, *leaf.at)
            yield path, replace(merged, at=at, where=leaf.where or where, group=group)
    is_longer = _longer(graph, length, most, end, origin)
    flag = _as_tensor(graph, is_longer, end, origin)
    empty = ir.insert_constant(graph, torch.zeros(0), end)
    yield join(name, most), Leaf(empty, flag, where, (most,), list_name)


def _longer(graph: Any, length: Any, index: int, before: Any, origin: Any) -> Any:
    """Whether a list of this length has an element at the index."""
    emit = Emit(graph, before, origin)
    return emit.op("aten::gt", length, index, type=ir.C.BoolType.get())


def _if_longer(graph: Any, length: Any, index: int, end: Any, origin: Any) -> Any:
    """An if without outputs, whose first branch runs where the list has the element."""
    node = graph.create("prim::If", [_longer(graph, length, index, end, origin)], 0)
    node.insertBefore(end)
    ir.adopt(node, origin)
    node.addBlock()
    node.addBlock()
    return node


def _by_branch(graph: Any, value: Any, name: str, bounds: Bounds) -> Leaves | None:
    """The leaves of an output of an if; None if no branch sets the value. torch compiles an early
    return to a value that is not initialized on the other paths.
    """
    value = _unpacked(graph, value)
    node = value.node()
    if node.kind() == "prim::Uninitialized":
        return None
    if not _differs(value):
        raise AssertionError("only differing structures are handled by branch")
    sides: list[Leaves | None] = []
    blocks = list(node.blocks())
    for block in blocks:
        returned = _unpacked(graph, list(block.outputs())[value.offset()])
        if returned.node().kind() == "prim::Uninitialized":
            sides.append(None)
        elif _differs(returned):
            sides.append(_by_branch(graph, returned, name, bounds))
        else:
            sides.append(
                dict(_leaves(graph, returned, name, block.returnNode(), bounds))
            )
    if all(side is None for side in sides):
        return None
    positions = {}
    for side in sides:
        for path, leaf in (side or {}).items():
            positions[path] = leaf.at
    return {
        path: _merged(graph, node, [_end(side, path) for side in sides])
        for path in sorted(positions, key=positions.__getitem__)
    }


def _end(side: Leaves | None, path: str) -> Leaf | str | None:
    """A branch's leaf, None if the branch has none, `UNSET` if it is never read."""
    if side is None:
        return UNSET
    return side.get(path)


UNSET = "unset"


def _merged(graph: Any, node: Any, ends: list[Leaf | str | None]) -> Leaf:
    """The leaf as an output of the if; the ends are those of its blocks."""
    blocks = list(node.blocks())
    leaves = [end for end in ends if isinstance(end, Leaf)]
    flagged = None in ends or any(leaf.flag is not None for leaf in leaves)
    for block, end in zip(blocks, ends, strict=True):
        last = block.returnNode()
        if isinstance(end, Leaf):
            block.registerOutput(end.value)
            flag = end.flag
        else:
            block.registerOutput(ir.insert_constant(graph, torch.zeros(0), last))
            flag = None
        if flagged:
            if flag is None:
                flag = ir.insert_constant(
                    graph, torch.tensor(isinstance(end, Leaf)), last
                )
            block.registerOutput(flag)
    value = node.addOutput().setType(ir.TENSOR)
    if not flagged:
        return Leaf(value, at=leaves[0].at)
    flag = node.addOutput().setType(ir.TENSOR)
    first = leaves[0]
    locations = [leaf.where for leaf in leaves if leaf.where]
    where = locations[0] if locations else source_line(node)
    return Leaf(value, flag, where, first.at, first.too_long, first.group)


def _of_optional(
    graph: Any, value: Any, name: str, end: Any, bounds: Bounds
) -> Iterator[tuple[str, Leaf]]:
    """The leaves of an Optional that no branch of the graph decides; it is compared with None."""
    inner = value.type().getElementType()
    if not _is_open(value):
        present = _as_type(graph, value, inner, end)
        yield from _leaves(graph, present, name, end, bounds)
        return
    if inner.kind() != "TensorType":
        raise LoweringError(
            f"output {name or 'output'!r} may be None, and its tensors otherwise are known only "
            "at run time",
            where=source_line(value.node()),
            fix="return tensors on every path, or on none",
        )
    origin = value.node()
    is_present = Emit(graph, end, origin).op(
        "aten::__isnot__", value, None, type=ir.C.BoolType.get()
    )
    tensor = filled.tensor_or_empty(
        graph,
        is_present,
        end,
        origin,
        lambda before: _as_type(graph, value, inner, before),
    )
    flag = _as_tensor(graph, is_present, end, origin)
    yield name, Leaf(tensor, flag, source_line(origin))


def _is_open(value: Any) -> bool:
    """Whether an Optional may be None as far as the graph shows. Branches of ifs and elements of
    tuples are resolved; constants are not None here.
    """
    node = value.node()
    if node.kind() in ("prim::If", "prim::TupleUnpack", "prim::TupleIndex"):
        return _may_be_none(value)
    return node.kind() in (
        "prim::Loop",
        "aten::__getitem__",
        "prim::unchecked_unwrap_optional",
    )


def _may_be_none(value: Any) -> bool:
    """Whether a branch returns None for a value, or for the tuple element that it is."""
    node = value.node()
    if node.kind() == "prim::If":
        ends = ir.branch_ends(value)
        return any(ir.is_none(end) or _may_be_none(end) for end in ends)
    if node.kind() in ("prim::TupleUnpack", "prim::TupleIndex"):
        return any(
            ir.is_none(element) or _may_be_none(element)
            for element in _tuple_elements(node.inputsAt(0), _index_in_tuple(value))
        )
    return bool(node.kind() == "prim::Loop" and value.type().kind() == "OptionalType")


def _index_in_tuple(value: Any) -> int | None:
    node = value.node()
    if node.kind() == "prim::TupleUnpack":
        return int(value.offset())
    index = ir.constant(node.inputsAt(1))
    return index if isinstance(index, int) else None


def _tuple_elements(value: Any, index: int | None) -> list[Any]:
    """The values that the branches of ifs put at an index of a tuple."""
    node = value.node()
    if node.kind() == "prim::TupleConstruct" and index is not None:
        return [node.inputsAt(index)]
    if node.kind() != "prim::If":
        return []
    ends = ir.branch_ends(value)
    return [element for end in ends for element in _tuple_elements(end, index)]


def _unpacked(graph: Any, value: Any) -> Any:
    """The value itself if a tuple is built and unpacked again, so that a None inside it is known.
    An element of a tuple from branches becomes an output of their if.
    """
    node = value.node()
    if node.kind() == "prim::unchecked_cast" and value.type().kind() == "OptionalType":
        return _unpacked(graph, node.input())
    if node.kind() not in ("prim::TupleUnpack", "prim::TupleIndex"):
        return value
    index = _index_in_tuple(value)
    container = node.inputsAt(0)
    if index is None:
        return value
    if container.node().kind() == "prim::TupleConstruct":
        return _unpacked(graph, container.node().inputsAt(index))
    if container.node().kind() == "prim::If" and value.type().kind() != "TensorType":
        return _projected(graph, container, index)
    return value


def _projected(graph: Any, container: Any, index: int) -> Any:
    """The element of a tuple, as an output of the if whose branches return the tuple."""
    node = container.node()
    offset = container.offset()
    kind = container.type().elements()[index]
    for block in node.blocks():
        returned = list(block.outputs())[offset]
        last = block.returnNode()
        kind_of_value = returned.node().kind()
        if kind_of_value == "prim::TupleConstruct":
            element = returned.node().inputsAt(index)
        elif kind_of_value == "prim::If":
            element = _projected(graph, returned, index)
        elif kind_of_value == "prim::Uninitialized":
            element = Emit(graph, last).op(kind_of_value, type=kind)
        else:
            types = list(returned.type().elements())
            unpacked = ir.insert(graph, "prim::TupleUnpack", [returned], last, types)
            element = ir.outputs(unpacked)[index]
        block.registerOutput(element)
    return node.addOutput().setType(kind)


def _children(
    graph: Any, children: Any, name: str, end: Any, bounds: Bounds
) -> Iterator[tuple[str, Leaf]]:
    for index, (part, child) in enumerate(children):
        for leaf_name, leaf in _leaves(graph, child, join(name, part), end, bounds):
            yield leaf_name, replace(leaf, at=(index, *leaf.at))


def _elements(graph: Any, value: Any, end: Any) -> list[Any]:
    node = value.node()
    if node.kind() == "prim::TupleConstruct":
        return list(node.inputs())
    types = value.type().elements()
    return ir.outputs(
        ir.insert(graph, "prim::TupleUnpack", [value], end, types, origin=node)
    )


def _filled(
    value: Any, name: str, elements: Sequence[filled.Element] | None
) -> Iterator[tuple[str, Leaf]]:
    """The leaves of a container's elements. Raises LoweringError where they are not known."""
    if elements is None:
        raise _not_a_tensor(value, name)
    for index, (part, tensor, flag) in enumerate(elements):
        where = ""
        if flag is not None:
            where = source_line(value.node())
        yield join(name, part), Leaf(tensor, flag, where, (index,))


def _built(graph: Any, value: Any, end: Any) -> list[tuple[Any, Any]] | None:
    """Parts and values of a list or dictionary that is a constant, or built in the graph with a
    known number of elements; None for any other.
    """
    node = value.node()
    constant = ir.constant(value)
    if isinstance(constant, list):
        return list(enumerate(ir.insert_constants(graph, constant, end)))
    if isinstance(constant, dict):
        elements = ir.insert_constants(graph, [*constant.values()], end)
        return list(zip(map(_part, constant), elements, strict=True))
    if node.kind() == "prim::ListConstruct":
        return list(enumerate(node.inputs()))
    if node.kind() == "prim::DictConstruct":
        keys = ir.inputs(node)[::2]
        values = ir.inputs(node)[1::2]
        if all(ir.is_constant(key) for key in keys):
            parts = [_part(key.toIValue()) for key in keys]
            # keys may be repeated
            return list(dict(zip(parts, values, strict=True)).items())
    return None


def _part(key: Any) -> str | int:
    """A dictionary's key as a part of a name."""
    if type(key) is int and key >= 0:
        return key
    return str(key)


def _not_a_tensor(value: Any, name: str) -> LoweringError:
    has_text = "StringType" in _element_kinds(value.type())
    if value.type().kind() == "ListType" and not has_text:
        return UnboundedListError(name or "output", source_line(located(value)))
    if value.type().kind() == "DictType" and not has_text:
        return LoweringError(
            f"output {name or 'output'!r} is a dictionary whose keys are not known"
            " before the model runs, and Triton's models have a fixed set of outputs",
            where=source_line(located(value)),
            fix=(
                "use keys that are constants in the source, or return a list (`max_lengths` in the"
                " manifest) and the keys as a tensor"
            ),
        )
    return LoweringError(
        f"output {name or 'output'!r} is a {value.type().annotation_str}, and an endpoint returns"
        " only tensors",
        where=source_line(located(value)),
        fix="return tensors and numbers, in tuples, lists and dictionaries",
    )


def _element_kinds(kind: Any) -> set[str]:
    """The kinds of the values in a list or dictionary, and in those within."""
    inner = kind.containedTypes()
    if not inner:
        return {kind.kind()}
    return _element_kinds(inner[-1])
