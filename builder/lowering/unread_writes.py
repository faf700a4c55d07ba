"""Remove writes to attributes of the module on which no output of this or a later call depends,
such as a count of calls, a running mean, or attention weights that are kept for a plot. Messages,
which a lowered graph never has, are removed with them.

The search starts at the outputs and at the nodes that raise. It follows values, the conditions of
branches and loops, and memory: who reads a tensor, a list or an attribute needs every write to it,
before or after the read, because the attribute keeps it for the next call. What the search does not
reach is not needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from builder.graph_types import Block, Graph, Node, Value
from builder.lowering import ir
from builder.lowering.locations import source_line
from builder.lowering.objects import READ, WRITE, AttributeKey, access_key
from builder.lowering.passes.functionalize.origins import stores
from builder.lowering.passes.functionalize.sharing import holds, sources, written_inputs
from builder.reachable import reachable

_MESSAGES = ("aten::warn", "prim::Print")
_CALLS = ("prim::CallMethod", "prim::CallFunction", "prim::fork", "prim::Closure")
"""Nodes with effects that the graph does not show."""


@dataclass(frozen=True)
class UnreadAttribute:
    """An attribute that forward writes and no output depends on: its name with the path of its
    module, and the source location of the first write.
    """

    full_name: str
    where: str


def writes(graph: Graph) -> bool:
    """Whether the graph writes an attribute, or writes in place."""
    return bool(ir.nodes_of(graph, WRITE)) or any(map(written_inputs, ir.walk(graph)))


def remove(
    graph: Graph,
    is_created: Callable[[Value], bool],
    shares_memory: Callable[[], bool],
) -> tuple[UnreadAttribute, ...]:
    """Remove these writes from the graph and return their attributes. Objects that the graph
    creates (`is_created`) are left alone. `shares_memory` answers whether two attributes of the
    module may be one tensor.

    Nothing is removed from a trace in training mode: its writes are refused later, with the fix.
    """
    if ir.nodes_of(graph, *_CALLS) or _is_training(graph):
        return ()
    memory = _Memory(graph, is_created, shares_memory)
    if not memory.writers:
        return ()
    needed = memory.needed()
    unread = [node for node in memory.writers if node not in needed]
    attributes = [memory.attribute(node) for node in unread]
    for node in unread:
        _remove(node)
    if unread:
        # they may show the attribute; eliminate-exceptions removes the messages of all graphs
        for message in ir.nodes_of(graph, *_MESSAGES):
            message.destroy()
        ir.C._jit_pass_dce(graph)
    return tuple({one.full_name: one for one in reversed(attributes)}.values())[::-1]


def _is_training(graph: Graph) -> bool:
    """Whether a batch normalization updates its statistics. Its schema declares no write."""
    return any(
        ir.constant(node.inputsAt(5)) is True and not ir.is_none(node.inputsAt(3))
        for node in ir.nodes_of(graph, "aten::batch_norm")
    )


def _remove(node: Node) -> None:
    """Remove a write. An in-place operator returns the tensor or list that it wrote, but `pop` an
    element of it: then the write stays, and is refused later.
    """
    if node.kind() == WRITE or not node.hasUses():
        node.destroy()
        return
    written = node.inputsAt(written_inputs(node)[0])
    if [value.type().str() for value in node.outputs()] == [written.type().str()]:
        ir.replace(node, [written])


class _Memory:
    """Which values of a graph may share memory, and which nodes write attributes of the module:
    assignments, and operators that write a tensor, list or dictionary of an attribute in place.
    """

    def __init__(
        self,
        graph: Graph,
        is_created: Callable[[Value], bool],
        shares_memory: Callable[[], bool],
    ) -> None:
        self._graph = graph
        self._nodes = list(ir.walk(graph))
        self._reads = defaultdict[AttributeKey, list[Value]](list)
        self._assignments = defaultdict[AttributeKey, list[Node]](list)
        for node in self._nodes:
            if node.kind() == READ:
                self._reads[access_key(node)].append(node.output())
            elif node.kind() == WRITE:
                self._assignments[access_key(node)].append(node)
        self._stored = [
            value
            for node in self._nodes
            if stores(node)
            for value in node.inputs()
            if holds(value)
        ]
        reads = [value for values in self._reads.values() for value in values]
        constants = (n.output() for n in self._nodes if n.kind() == "prim::Constant")
        self._holders = [value for value in (*reads, *constants) if holds(value)]
        self._containers = [v for v in self._holders if not _is_tensor(v)]
        in_place = self._in_place()
        self._shared = bool(in_place) and shares_memory()
        self.writers = [
            node
            for nodes in self._assignments.values()
            for node in nodes
            if not is_created(node.inputsAt(0))
        ]
        self.writers += [node for node in in_place if self._attributes(node)]
        self._writers_of = self._by_value([*in_place, *self._all_assignments()])

    def _all_assignments(self) -> Iterator[Node]:
        for nodes in self._assignments.values():
            yield from nodes

    def _in_place(self) -> list[Node]:
        if not self._reads:
            return []
        return [node for node in self._nodes if written_inputs(node)]

    def _by_value(self, writers: Sequence[Node]) -> dict[Value, list[Node]]:
        """By value: the nodes that may write its memory, or the attribute that it is read from."""
        if not self.writers:
            return {}
        sharing = defaultdict[Value, list[Value]](list)
        for value in self._values():
            for source in self._sources(value):
                sharing[source].append(value)
        result = defaultdict[Value, list[Node]](list)
        for node in writers:
            written = (
                self._reads[access_key(node)]
                if node.kind() == WRITE
                else reachable(self._origins(node), sharing.__getitem__)
            )
            for value in written:
                result[value].append(node)
        return result

    def _values(self) -> Iterator[Value]:
        for node in self._nodes:
            yield from node.outputs()
            for block in ir.blocks_of(node):
                yield from block.inputs()

    def _origins(self, node: Node) -> list[Value]:
        """The values whose memory an in-place operator may write, back to where it comes from."""
        written = [node.inputsAt(index) for index in written_inputs(node)]
        return list(reachable(written, self._sources))

    def _attributes(self, node: Node) -> list[Node]:
        """The reads of the attributes that an in-place operator may write."""
        owners = (value.node() for value in self._origins(node))
        return [owner for owner in owners if owner.kind() == READ]

    def _sources(self, value: Value) -> list[Value]:
        """The values that a value may share memory with, one step back."""
        if not holds(value):
            return []
        node = value.node()
        if node.kind() == READ:
            return [*self._stored_in(access_key(node)), *self._same_memory(value)]
        if node.kind() == "prim::Constant":
            return list(self._same_memory(value)) if self._shared else []
        if node.kind() in _PASSING:
            return _passed(value)
        before = sources(node, ir.inputs(node))
        if node.kind().startswith("prim::"):
            before = [source for source in node.inputs() if holds(source)]
        if all(map(_is_tensor, before)):
            return before
        return [*before, *self._stored]

    def _stored_in(self, key: AttributeKey) -> Iterator[Value]:
        for node in self._assignments[key]:
            yield node.inputsAt(1)

    def _same_memory(self, read: Value) -> Sequence[Value]:
        """Reads that may give the same memory: all of a group share it with the first."""
        if self._shared:
            group = self._holders
        elif _is_tensor(read):
            group = self._reads[access_key(read.node())]
        else:
            group = self._containers
        return group if read == group[0] else group[:1]

    def needed(self) -> set[Node]:
        """The nodes that write what the outputs, or a node that raises, depend on."""
        found = set[Node]()

        def following(value: Value) -> Iterator[Value]:
            node = value.node()
            yield from _passed(value) if node.kind() in _PASSING else node.inputs()
            if ir.blocks_of(node):
                yield from _decisions(node)
            yield from _conditions(node.owningBlock())
            for writer in self._writers_of.get(value, ()):
                found.add(writer)
                yield from writer.inputs()
                yield from _conditions(writer.owningBlock())

        starts = list(self._graph.outputs())
        for node in self._nodes:
            if _has_effect(node):
                starts += [*node.inputs(), *_conditions(node.owningBlock())]
        for _ in reachable(starts, following):
            pass
        return found

    def attribute(self, node: Node) -> UnreadAttribute:
        """The attribute that a node writes. Of several, the nearest."""
        access = node if node.kind() == WRITE else self._attributes(node)[0]
        return UnreadAttribute(_full_name(access), source_line(node))


def _is_tensor(value: Value) -> bool:
    return value.type().kind() == "TensorType"


def _full_name(access: Node) -> str:
    """The name of an attribute with the path of its module from the graph's module."""
    names = [access.s("name")]
    owner = access.inputsAt(0).node()
    while owner.kind() == READ:
        names.append(owner.s("name"))
        owner = owner.inputsAt(0).node()
    return ".".join(reversed(names))


_PASSING = frozenset(["prim::If", "prim::Loop", "prim::Param"])


def _passed(value: Value) -> list[Value]:
    """The values that an output of an if or loop, or a parameter of a loop, may be."""
    node = value.node()
    if node.kind() == "prim::If":
        return ir.branch_ends(value)
    index = value.offset()
    if node.kind() == "prim::Param":
        owner, index = node.owningBlock().owningNode(), index - 1
        # an input of the graph, or the counter of a loop
        if owner is None or index < 0:
            return []
        node = owner
    return [node.inputsAt(index + 2), list(ir.first_block(node).outputs())[index + 1]]


def _conditions(block: Block) -> Iterator[Value]:
    """The values that decide whether, and how often, a block runs."""
    owner = block.owningNode()
    while owner is not None:
        yield from _decisions(owner)
        owner = owner.owningBlock().owningNode()


def _decisions(node: Node) -> Iterator[Value]:
    yield node.inputsAt(0)
    if node.kind() == "prim::Loop":
        yield node.inputsAt(1)
        yield next(iter(ir.first_block(node).outputs()))


def _has_effect(node: Node) -> bool:
    """Whether a node without results does something else than to write or to show a message."""
    if node.kind() in (WRITE, *_MESSAGES, "prim::If", "prim::Loop"):
        return False
    return not node.outputsSize() and not written_inputs(node)
