"""Replace an attribute by a local value, if every path of a call writes it before it reads it: an
attribute of the module, of which then no call reads the value of an earlier one, or of an object.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from builder.graph_types import Block, Graph, Node, NodeList, Type, Value
from builder.lowering import ir, lazy_attributes
from builder.lowering.emit import Emit
from builder.lowering.lazy_attributes import CachedAttribute
from builder.lowering.locations import source_line
from builder.lowering.objects import READ, WRITE, read_attribute

_MODULES = ("ClassType", "InterfaceType")
"""The types of submodules. Python may not know the class of another attribute."""


class Attribute(NamedTuple):
    """An attribute: the path of its module from the graph's module, and its name."""

    path: tuple[str, ...]
    name: str


class _ReadBeforeWrite(Exception):
    """A path may read the attribute before it writes it."""


def replace(
    graph: Graph, module: Any, *, caches: bool = False
) -> tuple[CachedAttribute, ...]:
    """Replace the attributes of `module`, the graph's first input, and of its submodules that each
    call writes before it reads them. Others are left as they are. With `caches`, also replace those
    that keep a value of sizes. Returns these.
    """
    attributes = _candidates(graph, module)
    # all before the first is replaced: one if may set several
    lazy = [local for local in attributes if local.is_lazy()]
    cached = {
        local.attribute: local.cached()
        for local in attributes
        if caches and local not in lazy and local.is_cache()
    }
    for local in attributes:
        cache = cached.get(local.attribute)
        if cache is not None or local in lazy:
            value = cache.value if cache else None
            local.rewrite(graph, ir.insert_constant(graph, value, ir.first_node(graph)))
            continue
        try:
            local.check(graph)
        except _ReadBeforeWrite:
            continue
        local.rewrite(graph, None)
    return tuple(cached.values())


def _candidates(graph: Graph, module: Any) -> list[_Local]:
    """The attributes that are read and written, if no other node can read or write them."""
    if not ir.nodes_of(graph, WRITE):
        return []
    modules = modules_of(graph, module)
    kinds = defaultdict[Attribute, set[str]](set)
    types: dict[Attribute, Type] = {}
    for node in ir.nodes_of(graph, READ, WRITE):
        attribute = _attribute(node, modules)
        if attribute is not None:
            kinds[attribute].add(node.kind())
            if node.kind() == READ:
                types[attribute] = node.output().type()
    candidates = [
        attribute for attribute, accesses in kinds.items() if len(accesses) > 1
    ]
    if not candidates or _is_shared(candidates, modules) or _is_passed(graph, modules):
        return []
    return [
        _Local(graph, attribute, types[attribute], modules) for attribute in candidates
    ]


def replace_objects(graph: Graph) -> None:
    """Replace each object that the graph creates by the values of its attributes. Objects that are
    used in another way, such as in a list, are left as they are.
    """
    if ir.nodes_of(graph, "prim::CreateObject"):
        ir.read_tuples(graph)
    while any(
        _replace_object(graph, creation)
        for creation in ir.nodes_of(graph, "prim::CreateObject")
    ):
        ir.read_tuples(graph)  # the attributes of a replaced object may be objects


def _replace_object(graph: Graph, creation: Node) -> bool:
    """Replace one object if only its attributes are used. Returns whether it was replaced."""
    created = creation.output()
    users = [use.user for use in created.uses()]
    if not all(_is_access(user, created) for user in users):
        return False
    owner: Modules = {created.unique(): ((), None)}
    types = {
        user.s("name"): user.output().type() for user in users if user.kind() == READ
    }
    attributes = [
        _Local(graph, Attribute((), name), kind, owner) for name, kind in types.items()
    ]
    try:
        for local in attributes:
            local.check(graph)
    except _ReadBeforeWrite:
        return False
    for local in attributes:
        local.rewrite(graph, None)
    for unread in [use.user for use in created.uses()]:
        unread.destroy()
    creation.destroy()
    return True


def _is_access(node: Node, created: Value) -> bool:
    """Whether the node reads or writes an attribute of the object, and does not store the object
    itself.
    """
    return node.kind() in (READ, WRITE) and all(
        value.unique() != created.unique() for value in ir.inputs(node)[1:]
    )


Modules = Mapping[int, tuple[tuple[str, ...], Any]]
"""The path and the module of a value, by the number of the value."""


def modules_of(graph: Graph, module: Any) -> Modules:
    """The submodules that the graph reads from `module`, its first input."""
    modules: dict[int, tuple[tuple[str, ...], Any]] = {
        next(iter(graph.inputs())).unique(): ((), module)
    }
    for node in ir.nodes_of(graph, READ):
        owner = modules.get(node.inputsAt(0).unique())
        if owner is None or node.output().type().kind() not in _MODULES:
            continue
        path, source = owner
        inner = read_attribute(source, node)
        if isinstance(inner, torch._C.ScriptModule):
            modules[node.output().unique()] = (*path, node.s("name")), inner
    return modules


def _attribute(node: Node, modules: Modules) -> Attribute | None:
    """The attribute that a node reads or writes. None for a submodule and for other nodes."""
    if node.kind() not in (READ, WRITE):
        return None
    if node.kind() == READ and node.output().unique() in modules:
        return None
    owner = modules.get(node.inputsAt(0).unique())
    return None if owner is None else Attribute(owner[0], node.s("name"))


def _is_passed(graph: Graph, modules: Modules) -> bool:
    """Whether a module is used in another way, by which an attribute may be read or written."""
    return any(
        value.unique() in modules
        for node in ir.walk(graph)
        if node.kind() not in (READ, WRITE)
        for value in node.inputs()
    )


def _is_shared(attributes: list[Attribute], modules: Modules) -> bool:
    """Whether two paths of these attributes are one module. Python has a new object for each read
    of a module, so this changes one and reads the other.
    """
    by_path = dict(modules.values())
    owners = [by_path[path] for path in {attribute.path for attribute in attributes}]
    return any(itertools.starmap(_is_same, itertools.combinations(owners, 2)))


def _is_same(module: Any, other: Any) -> bool:
    if not (module.hasattr("training") and other.hasattr("training")):
        return True
    before, unchanged = module.getattr("training"), other.getattr("training")
    module.setattr("training", not before)
    changed = other.getattr("training") != unchanged
    module.setattr("training", before)
    return bool(changed)


class _Local:
    """One attribute, and its replacement by a value."""

    def __init__(
        self, graph: Graph, attribute: Attribute, kind: Type, modules: Modules
    ) -> None:
        self.graph = graph
        self.attribute = attribute
        self.kind = kind
        self.modules = modules

    def is_lazy(self) -> bool:
        """Whether it is None in the file, and set only where it is None, from no input."""
        read = self._nodes(READ)[0]
        return lazy_attributes.is_lazy(
            self.graph, read, self._owner(read), self._nodes(WRITE)
        )

    def is_cache(self) -> bool:
        """Whether it keeps a value of sizes."""
        read = self._nodes(READ)[0]
        return lazy_attributes.is_cache(
            self.graph, read, self._owner(read), self._nodes(WRITE)
        )

    def cached(self) -> CachedAttribute:
        """The attribute with the source location of its first write."""
        read = self._nodes(READ)[0]
        value = read_attribute(self._owner(read), read)
        where = source_line(self._nodes(WRITE)[0])
        return CachedAttribute(*self.attribute, value, where)

    def _owner(self, access: Node) -> Any:
        """The module whose attribute a node reads or writes."""
        return self.modules[access.inputsAt(0).unique()][1]

    def _nodes(self, kind: str) -> list[Node]:
        """The nodes that read the attribute, or those that write it."""
        nodes = ir.nodes_of(self.graph, kind)
        return [n for n in nodes if _attribute(n, self.modules) == self.attribute]

    def check(self, block: NodeList, *, written: bool = False) -> bool:
        """Return whether every path to the end of the block writes the attribute. `written` is
        whether every path to its start does. Raises _ReadBeforeWrite.
        """
        for node in block.nodes():
            if node.kind() == "prim::If":
                ends = [self.check(inner, written=written) for inner in node.blocks()]
                written = all(ends)
            elif node.kind() == "prim::RaiseException":
                written = True  # nothing after it runs
            elif node.kind() == "prim::Loop":
                # not assigned to `written`: the loop may have no iteration
                self.check(ir.first_block(node), written=written)
            elif _attribute(node, self.modules) == self.attribute:
                if node.kind() == READ and not written:
                    raise _ReadBeforeWrite
                written = True
            elif any(map(self._accesses, node.blocks())):
                raise _ReadBeforeWrite
        return written

    def _accesses(self, block: NodeList, *kinds: str) -> bool:
        return any(
            _attribute(node, self.modules) == self.attribute
            and (not kinds or node.kind() in kinds)
            for node in ir.walk(block)
        )

    def rewrite(self, block: NodeList, value: Value | None) -> Value | None:
        """Replace the accesses in the block, before which the attribute is `value`. Returns its
        value at the end; None if that is not known on every path.
        """
        for node in list(block.nodes()):
            if node.kind() == "prim::If":
                value = self._branches(node, value)
            elif node.kind() == "prim::RaiseException":
                if value is None:
                    emit = Emit(self.graph, node)
                    value = emit.op("prim::Uninitialized", type=self.kind)
            elif node.kind() == "prim::Loop":
                value = self._loop(node, value)
            elif _attribute(node, self.modules) != self.attribute:
                continue
            elif node.kind() == READ:
                assert value is not None
                ir.replace(node, [value])
            else:
                value = node.inputsAt(1)
                node.destroy()
        return value

    def _branches(self, node: Node, value: Value | None) -> Value | None:
        blocks = ir.blocks_of(node)
        changes = any(self._accesses(block, WRITE) for block in blocks)
        ends = [self.rewrite(block, value) for block in blocks]
        if not changes:
            return value
        known = [end for end in ends if end is not None]
        if len(known) < len(ends):
            return None
        for block, end in zip(blocks, known, strict=True):
            block.registerOutput(end)
        return node.addOutput().setType(self.kind)

    def _loop(self, node: Node, value: Value | None) -> Value | None:
        body: Block = ir.first_block(node)
        if value is None or not self._accesses(body, WRITE):
            self.rewrite(body, value)
            return value
        node.addInput(value)
        start = body.addInputToBlock().setType(self.kind)
        end = self.rewrite(body, start)
        assert end is not None
        body.registerOutput(end)
        return node.addOutput().setType(self.kind)
