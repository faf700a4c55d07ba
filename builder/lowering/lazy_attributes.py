"""Attributes that forward sets depending on their value, such as
`if self.scales is None: self.scales = ...` or `if n > self.cached: self.cached = n`.

If the value depends on nothing that differs between requests, each call may compute it again. A
value of sizes is a cache: in torch, a later call with another size may use the value of an earlier
call. The graph starts each call with the value in the file, as a module does that was just loaded.
A random value, and one that is written in place, is state: a later call starts with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from builder.graph_types import Block, Graph, Node, Value
from builder.lowering import ir
from builder.lowering.constant_writes import are_separate
from builder.lowering.objects import (
    READ,
    WRITE,
    access_key,
    read_attribute,
    set_attribute,
)
from builder.lowering.passes.functionalize.origins import origins, stores
from builder.lowering.passes.functionalize.sharing import holds, written_inputs
from builder.reachable import reachable

_FIXED = frozenset({"aten::dim", "prim::dtype", "prim::device"})
"""Operators on tensors whose result is the same for all requests."""
_SIZES = frozenset({"aten::size", "aten::len", "aten::numel"})
"""Operators on tensors, and on lists of them, that read sizes and no data."""


@dataclass(frozen=True)
class CachedAttribute:
    """An attribute that keeps a value of sizes for later calls: the path of its module, its name
    (`grid[0]` for an element of a list), its value in the file, and the source location of the
    write.
    """

    path: tuple[str, ...]
    name: str
    value: Any
    where: str

    @property
    def full_name(self) -> str:
        """The name with the path, such as `roi_heads.box_roi_pool.scales`."""
        return ".".join((*self.path, self.name))


def reset(module: Any, attributes: Iterable[CachedAttribute]) -> None:
    """Set these attributes of a ScriptModule to their values in its file."""
    for attribute in attributes:
        owner = module._c
        for name in attribute.path:
            owner = owner.getattr(name)
        set_attribute(owner, attribute.name, attribute.value)


def is_lazy(graph: Graph, read: Node, source: object, writes: list[Node]) -> bool:
    """Whether the attribute that a node reads from its owner `source` is None in the file, and all
    `writes` set it only where it or another such attribute is None, to a value that each call
    computes equally and that nothing changes afterwards.
    """
    return (
        _is_none_in_file(read, source)
        and all(
            _is_guarded(write) and not _depends_on_input(write.inputsAt(1))
            for write in writes
        )
        and not _may_change(graph, writes)
    )


def _may_change(graph: Graph, writes: list[Node]) -> bool:
    """Whether a node may write one of the values that `writes` store in place: with an input of the
    graph, or outside the branch that computes the value.
    """
    nodes = list(ir.walk(graph))
    inside = {value.unique() for node in nodes for value in _defined(node)}
    items = [v for node in nodes if stores(node) for v in node.inputs() if holds(v)]
    lazy = {access_key(write) for write in writes}
    values = [write.inputsAt(1) for write in writes]
    values += [n.output() for n in nodes if n.kind() == READ and access_key(n) in lazy]
    memory = origins(values, inside, items).keys
    branches = [write.owningBlock() for write in writes]
    return any(
        not origins([node.inputsAt(index)], inside, items).keys.isdisjoint(memory)
        and not (node.owningBlock() in branches and not _reads_input(node))
        for node in nodes
        for index in written_inputs(node)
    )


def _defined(node: Node) -> Iterator[Value]:
    yield from node.outputs()
    for block in ir.blocks_of(node):
        yield from block.inputs()


def _reads_input(node: Node) -> bool:
    return any(_depends_on_input(value) for value in node.inputs())


def is_cache(graph: Graph, read: Node, source: object, writes: list[Node]) -> bool:
    """Whether all `writes` set the attribute that a node reads from its owner `source` from sizes
    of inputs, and a condition on its value, or on that of an attribute that is set with it, decides
    whether they do. A sum of sizes, which depends on earlier calls, is state.
    """
    every_write = _Writes(graph)
    return _is_plain_in_file(read, source) and all(
        _decides_itself(write)
        and _depends_on_input(write.inputsAt(1))
        and not _depends_on_data(write, every_write)
        for write in writes
    )


def _guards(write: Node) -> list[Node]:
    """The ifs that a write is in."""
    return [owner for owner in _owners(write.owningBlock()) if _is_if(owner)]


def _owners(block: Block) -> Iterator[Node]:
    """The ifs and loops that a block is in, from the inside."""
    owner = block.owningNode()
    while owner is not None:
        yield owner
        owner = owner.owningBlock().owningNode()


def _is_if(node: Node) -> bool:
    return node.kind() == "prim::If"


def _is_plain_in_file(read: Node, source: object) -> bool:
    """Whether the attribute in the file can be a constant of any graph."""
    try:
        value = read_attribute(source, read)
    except RuntimeError:  # Python does not know the class of the object
        return False
    return value is None or isinstance(value, int | float | torch.Tensor)


def _decides_itself(write: Node) -> bool:
    """Whether a condition on an attribute that the same if sets decides whether a write runs."""
    for guard in _guards(write):
        inside = [node for block in ir.blocks_of(guard) for node in ir.walk(block)]
        keys = {access_key(node) for node in inside if node.kind() == WRITE}
        sources = (value.node() for value in reachable([guard.inputsAt(0)], _origins))
        if any(node.kind() == READ and access_key(node) in keys for node in sources):
            return True
    return False


def _is_none_in_file(read: Node, source: object) -> bool:
    if read.output().type().kind() != "OptionalType":
        return False
    try:
        return read_attribute(source, read) is None
    except RuntimeError:  # Python does not know the class of the object
        return False


def _is_guarded(write: Node) -> bool:
    """Whether a write is in the first block of an if that compares only attributes with None."""
    guard = write.owningBlock().owningNode()
    if guard is None or guard.kind() != "prim::If":
        return False
    return write.owningBlock() == ir.first_block(guard) and _is_guard(guard.inputsAt(0))


def _is_guard(condition: Value) -> bool:
    """Whether a condition is `a is None`, or `a is None or b is None`."""
    node = condition.node()
    if node.kind() == "aten::__is__":
        return node.inputsAt(0).node().kind() == READ and ir.is_none(node.inputsAt(1))
    if node.kind() != "prim::If" or not _is_guard(node.inputsAt(0)):
        return False
    first, second = ir.branch_ends(condition)
    return ir.constant(first) is True and _is_guard(second)


class _Writes:
    """What a graph writes: attributes, and tensors in place."""

    def __init__(self, graph: Graph) -> None:
        self.attributes = {access_key(node) for node in ir.nodes_of(graph, WRITE)}
        self._aliases = graph.alias_db()
        self._in_place = [
            (node, node.inputsAt(index))
            for node in ir.walk(graph)
            for index in written_inputs(node)
            if node.inputsAt(index).type().kind() == "TensorType"
        ]

    def origins(self, value: Value) -> Iterator[Value]:
        """The values that are written into a tensor in place."""
        if value.type().kind() == "TensorType":
            for node, written in self._in_place:
                if self._aliases.may_contain_alias(written, value) and not are_separate(
                    written, value
                ):
                    yield from node.inputs()
                    yield from _conditions(node.owningBlock())


def _depends_on_data(write: Node, writes: _Writes) -> bool:
    """Whether the value of a write is random, or may depend on the data of an input, or on an
    attribute that is written. Sizes are no data, and the conditions of the write are constant.
    """
    conditions = {guard.inputsAt(0).unique() for guard in _guards(write)}

    def sources(value: Value) -> list[Value]:
        is_size = value.node().kind() in _SIZES
        if is_size and value.type().kind() != "TensorType":
            return []
        origins = (*_origins(value), *writes.origins(value))
        return [origin for origin in origins if origin.unique() not in conditions]

    return any(
        _is_varying(value)
        or (
            value.node().kind() == READ
            and access_key(value.node()) in writes.attributes
        )
        for value in reachable([write.inputsAt(1)], sources)
    )


def _depends_on_input(value: Value) -> bool:
    """Whether a value is random, or may depend on the data or a size of an input of the graph."""
    return any(map(_is_varying, reachable([value], _origins)))


def _is_varying(value: Value) -> bool:
    """Whether a value is an input of the graph, or random."""
    node = value.node()
    if node.isNondeterministic():
        return True
    return (
        node.kind() == "prim::Param"
        and node.owningBlock().owningNode() is None
        and value.type().kind() != "ClassType"
    )


def _origins(value: Value) -> Iterator[Value]:
    """The values that a value is computed from, without those of which only a fixed property is
    read.
    """
    node = value.node()
    if node.kind() == "prim::Param":
        node = node.owningBlock().owningNode()
    if node is None or node.kind() in _FIXED:
        return
    yield from node.inputs()
    for block in ir.blocks_of(node):
        yield from block.outputs()
    is_created = value.node().kind() == "prim::CreateObject"
    if is_created or value.type().kind() in ("ListType", "DictType"):
        for use in value.uses():
            if not _reads_element(use.user):
                yield from use.user.inputs()
                yield from _conditions(use.user.owningBlock())


def _reads_element(user: Node) -> bool:
    """Whether a node reads the length or an element of a list, and no list in it."""
    return user.kind() in ("aten::len", "aten::__getitem__") and not any(
        "[]" in value.type().str()
        or "Dict" in value.type().str()
        or value.type().kind() == "ClassType"
        for value in user.outputs()
    )


def _conditions(block: Block) -> Iterator[Value]:
    """The values that decide whether, and how often, a block runs."""
    for owner in _owners(block):
        yield from ir.inputs(owner)[: 1 if _is_if(owner) else 2]
