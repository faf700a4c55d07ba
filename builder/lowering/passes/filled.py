"""The elements of a list or dictionary that the graph fills after its construction.

Only graphs with in-place writes have such containers; in all others `functionalize` replaced them
by values. Each element is read at the end of the graph, with a flag if it may be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.locations import located

Element = tuple[str | int, Any, Any]
"""The key or index, the tensor, and the flag. The flag is None if the element always exists."""
_ADDS_ONE = frozenset(["aten::append", "aten::insert"])
_KNOWN = {
    "ListType": frozenset(
        "aten::_set_item aten::append aten::insert aten::pop aten::Delete aten::clear"
        " aten::reverse aten::remove".split()
    ),
    "DictType": frozenset(["aten::_set_item"]),
}
"""Writes with known keys, or with a known largest number of elements."""
_PASSES_ON = frozenset(
    "prim::If prim::Loop prim::TupleUnpack prim::TupleIndex prim::ListUnpack prim::unchecked_cast"
    " prim::Uninitialized aten::__getitem__ aten::_unwrap_optional aten::copy aten::pop".split()
)
"""Nodes that return existing dictionaries: other nodes set their keys."""
_BUILDS = frozenset(["prim::DictConstruct", "prim::Constant"])
_SETS = frozenset(["aten::_set_item", "aten::setdefault"])
_REMOVES = frozenset(
    "aten::pop aten::popitem aten::clear aten::Delete aten::remove".split()
)


def elements(graph: Any, value: Any, end: Any) -> list[Element] | None:
    """The elements of a list or dictionary of tensors that the graph writes to. Empty if the graph
    does not write to it; None if its possible elements are not known.
    """
    kind = value.type().kind()
    # torch folds no container that is written
    if ir.is_constant(value) or _is_only_returned(value):
        return []
    aliases = graph.alias_db()
    if not aliases.has_writers(value):
        return []
    writers = _writers(ir.walk(graph), aliases, value)
    builders = _builders(graph, aliases, value)
    are_known = {node.kind() for node in writers} <= _KNOWN[kind]
    if not _holds_tensors(value.type()) or not are_known:
        if kind == "DictType":
            return by_keys(graph, value, end)
        return None
    reader = _Reader(graph, value, writers[0] if writers else located(value), end)
    if kind == "DictType":
        certain = _built(value.node()) or []
        certain += [
            ir.constant(node.inputsAt(1)) for node in _unconditional(graph, value)
        ]
        keys = dict.fromkeys(certain) | dict.fromkeys(_keys(writers, builders))
        if None in keys:
            return by_keys(graph, value, end)
        return list(reader.entries(keys, certain))
    writers_outside_loops = _writers(_outside_loops(graph), aliases, value)
    if _count(writers_outside_loops, _ADDS_ONE) < _count(writers, _ADDS_ONE):
        return None
    return list(reader.items(*_lengths(graph, value, writers, builders)))


def _holds_tensors(container: Any) -> bool:
    """Whether the elements of a list, or the values of a dictionary, are tensors."""
    is_list = container.kind() == "ListType"
    element = container.getElementType() if is_list else container.getValueType()
    return bool(element.kind() == "TensorType")


def _is_only_returned(value: Any) -> bool:
    """Whether the graph builds a container and only returns it, also in a tuple."""
    node = value.node()
    users = [use.user for use in value.uses()]
    return node.kind() in ("prim::DictConstruct", "prim::TupleConstruct") and all(
        user.kind() == "prim::Return"
        or (user.kind() == "prim::TupleConstruct" and _is_only_returned(user.output()))
        for user in users
    )


def tensor_or_empty(
    graph: Any, is_present: Any, before: Any, origin: Any, read: Callable[[Any], Any]
) -> Any:
    """An if that returns a tensor where `is_present` is true, else an empty tensor. `read` inserts
    the nodes that read the tensor, and receives the node before which they go.
    """
    node = graph.create("prim::If", [is_present], 1)
    node.insertBefore(before)
    ir.adopt(node, origin)
    then = node.addBlock()
    otherwise = node.addBlock()
    then.registerOutput(read(then.returnNode()))
    empty = ir.insert_constant(graph, torch.zeros(0), otherwise.returnNode())
    otherwise.registerOutput(empty)
    return node.output().setType(ir.TENSOR)


def _lengths(
    graph: Any, value: Any, writers: list[Any], builders: list[Any]
) -> tuple[int, int]:
    """The greatest and the least length of a list that no loop extends."""
    longest_built = max((len(_built(node) or []) for node in builders), default=0)
    most = longest_built + _count(writers, _ADDS_ONE)
    if _count(writers, _REMOVES):
        return most, 0
    built = _built(value.node()) or []
    return most, len(built) + _count(_unconditional(graph, value), _ADDS_ONE)


def _writers(nodes: Iterable[Any], aliases: Any, value: Any) -> list[Any]:
    """Those of the nodes that may write to the container."""
    return [
        node
        for node in nodes
        if _writes_to(node, value.type())
        and aliases.may_contain_alias(node.inputsAt(0), value)
    ]


def _builders(graph: Any, aliases: Any, value: Any) -> list[Any]:
    """The nodes that may make the container."""
    kind = str(value.type())
    return [
        node
        for node in ir.nodes_of(graph, "prim::ListConstruct", "prim::DictConstruct")
        if str(node.output().type()) == kind
        and aliases.may_contain_alias(node.output(), value)
    ]


def _count(nodes: Sequence[Any], kinds: frozenset[str]) -> int:
    return sum(node.kind() in kinds for node in nodes)


def by_keys(graph: Any, value: Any, end: Any) -> list[Element] | None:
    """The values of a dictionary of tensors at each key that the graph puts into any dictionary of
    its type. None if one of these keys is unknown.
    """
    kind = str(value.type())
    if value.type().getValueType().kind() != "TensorType":
        return None
    nodes = list(ir.walk(graph))
    producers = [
        node
        for node in nodes
        if any(str(output.type()) == kind for output in node.outputs())
    ]
    builders = [node for node in producers if node.kind() in _BUILDS]
    if not {node.kind() for node in producers} <= _PASSES_ON | _BUILDS:
        return None
    writers = [node for node in nodes if _writes_to(node, value.type())]
    keys = dict.fromkeys(
        _keys([writer for writer in writers if writer.kind() in _SETS], builders)
    )
    if None in keys or not keys:
        return None
    certain = []
    if not _count(writers, _REMOVES):
        built = [_built(node) or () for node in builders]
        certain = [
            key
            for key in keys
            if all(key in keys_of_builder for keys_of_builder in built)
        ]
    return list(_Reader(graph, value, located(value), end).entries(keys, certain))


def _writes_to(node: Any, kind: Any) -> bool:
    """Whether it changes a list or dictionary of this type."""
    return _writes(node) and str(node.inputsAt(0).type()) == str(kind)


def _unconditional(graph: Any, value: Any) -> list[Any]:
    """The nodes outside of all blocks that write to the value by its own name."""
    name = value.debugName()
    writers = filter(_writes, graph.nodes())
    return [node for node in writers if node.inputsAt(0).debugName() == name]


def _writes(node: Any) -> bool:
    """Whether a node changes a list or dictionary, its first input."""
    if not node.inputsSize():
        return False
    if node.inputsAt(0).type().kind() not in _KNOWN:
        return False
    schema = ir.schema(node)
    info = None
    if schema is not None and schema.arguments:
        info = schema.arguments[0].alias_info
    return info is not None and info.is_write


def _built(node: Any) -> list[Any] | None:
    """The keys or indices of a container at its construction."""
    if node.kind() == "prim::ListConstruct":
        return list(range(node.inputsSize()))
    if node.kind() == "prim::DictConstruct":
        return [ir.constant(key) for key in ir.inputs(node)[::2]]
    if node.kind() == "prim::Constant":
        return list(ir.constant(node.output()) or ())
    return None


def _keys(writers: list[Any], builders: list[Any]) -> Iterator[Any]:
    """The keys that a dictionary may have; None for one that is not known."""
    for node in builders:
        yield from _built(node) or []
    for node in writers:
        yield ir.constant(node.inputsAt(1))


def _outside_loops(block: Any) -> Iterator[Any]:
    """The nodes of a block and of the ifs in it, each of which runs at most once."""
    for node in block.nodes():
        yield node
        if node.kind() == "prim::If":
            for inner in node.blocks():
                yield from _outside_loops(inner)


class _Reader:
    """Reads elements of one container before `end`. New nodes get the source location of
    `origin`.
    """

    def __init__(self, graph: Any, value: Any, origin: Any, end: Any) -> None:
        self.emit = Emit(graph, end, origin)
        self.value = value

    def entries(self, keys: Any, certain: list[Any]) -> Iterator[Element]:
        """The values of a dictionary at these keys."""
        for key in keys:
            part = key if type(key) is int and key >= 0 else str(key)
            name = self.emit.constant(key)
            if key in certain:
                yield part, self._read(name, self.emit.at), None
            else:
                is_present = self.emit.op(
                    "aten::__contains__", self.value, name, type=ir.C.BoolType.get()
                )
                yield part, *self._guarded(name, is_present)

    def items(self, most: int, least: int) -> Iterator[Element]:
        """The first `most` elements of a list, which has at least `least`."""
        for index in range(most):
            position = self.emit.constant(index)
            if index < least:
                yield index, self._read(position, self.emit.at), None
            else:
                length = self.emit.op("aten::len", self.value, type=ir.INT)
                is_present = self.emit.op(
                    "aten::gt", length, position, type=ir.C.BoolType.get()
                )
                yield index, *self._guarded(position, is_present)

    def _read(self, key: Any, before: Any) -> Any:
        emit = Emit(self.emit.graph, before, self.emit.origin)
        return emit.op("aten::__getitem__", self.value, key)

    def _guarded(self, key: Any, is_present: Any) -> tuple[Any, Any]:
        """The element where `is_present` is true, else an empty tensor; and `is_present` as a
        tensor.
        """
        tensor = tensor_or_empty(
            self.emit.graph,
            is_present,
            self.emit.at,
            self.emit.origin,
            lambda end: self._read(key, end),
        )
        return tensor, self.emit.op("prim::NumToTensor", is_present)
