"""The walk of functionalization over blocks, ifs and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builder.graph_types import Graph, Node, NodeList, Value
from builder.lowering import ir
from builder.lowering.passes.functionalize import containers, inplace
from builder.lowering.passes.functionalize.alias import Alias
from builder.lowering.passes.functionalize.branches import branch
from builder.lowering.passes.functionalize.counting import COUNTS, KNOWABLE
from builder.lowering.passes.functionalize.loops import loop
from builder.lowering.passes.functionalize.memory import Memory, cannot
from builder.lowering.passes.functionalize.overlap import reads_written_memory
from builder.lowering.passes.functionalize.sharing import (
    CONSTRUCTORS,
    copies_container,
    holds,
    sources,
    writes,
    written_inputs,
)
from builder.lowering.passes.functionalize.views import (
    LISTS_OF_VIEWS,
    REPEATING,
    UNCHECKED,
    VIEWS,
    VIEWS_IN_PLACE,
)
from builder.lowering.passes.unroll import trip_count, unroll

_BOXES = ("ListType", "TupleType", "DictType")


class Walk:
    """Rewrites one graph. `dead` are the nodes without users afterwards."""

    def __init__(self, graph: Graph, unroll_limit: int = 0) -> None:
        self.graph = graph
        self.memory = Memory(graph)
        self.unroll_limit = unroll_limit
        self.dead: list[Node] = []
        self.depth = 0

    def run(self) -> None:
        self._fresh(self.graph.inputs())
        self.block(self.graph, self.graph.return_node())
        for node in reversed(self.dead):
            node.destroy()

    def block(self, block: NodeList, end: Node) -> list[Value]:
        """Rewrite the nodes and outputs of a block. Returns its original outputs."""
        for node in list(block.nodes()):
            self.memory.at = node
            self.node(node)
        self.memory.at = end
        returned = ir.inputs(end)
        self.refresh(end, returned)
        return returned

    def refresh(self, node: Node, values: list[Value]) -> None:
        """Replace a node's inputs by their current content."""
        for index, value in enumerate(values):
            current = self.memory.read(value)
            if current != value:
                node.replaceInput(index, current)

    def node(self, node: Node) -> None:
        kind = node.kind()
        if kind == "prim::Constant":
            return
        self._count(node)
        if kind == "prim::If":
            return self._branch(node)
        if kind == "prim::Loop":
            return self._loop(node)
        if kind in COUNTS and self._counted(node, COUNTS[kind]):
            return None
        if kind == "aten::requires_grad_":  # declared as a write, but changes no number
            self.memory.same(node.output(), self.memory.alias(node.inputsAt(0)))
            self.dead.append(node)
            return None
        if writes(node):
            return self._write(node)
        values = ir.inputs(node)
        if kind in containers.READERS and self._read_container(kind, node, values):
            return
        self.refresh(node, values)
        if kind in CONSTRUCTORS:
            return containers.construct(self.memory, node, values)
        self._define(node, kind, values)

    def _count(self, node: Node) -> None:
        """Replace a node's inputs by known numbers and strings: lengths of lists, keys of
        dictionaries, and results derived from them.
        """
        for index, value in enumerate(ir.inputs(node)):
            if value.type().kind() in KNOWABLE and self.memory.known(value):
                node.replaceInput(index, self.memory.read(value))

    def _counted(self, node: Node, compute: Callable[..., Any]) -> bool:
        """Evaluate an operator whose arguments are all known."""
        if not all(
            ir.is_constant(value) and value.type().kind() in KNOWABLE
            for value in node.inputs()
        ):
            return False
        result = compute(*map(ir.constant, node.inputs()))
        if result is None:
            return False
        constant = self.memory.emit.constant(result)
        self.memory.same(node.output(), self.memory.alias(constant))
        self.dead.append(node)
        return True

    def _branch(self, node: Node) -> None:
        condition = ir.constant(node.inputsAt(0))
        if isinstance(condition, bool):
            if_true, if_false = node.blocks()
            block = if_true if condition else if_false
            return self._instead(node, lambda: ir.splice(node, block))
        self.refresh(node, ir.inputs(node))
        return self._inner(branch, node)

    def _loop(self, node: Node) -> None:
        """Unroll a loop over a list of known length, with its writes to other lists."""
        count = trip_count(node, self.unroll_limit)
        if count is None:
            return self._inner(loop, node)
        return self._instead(node, lambda: unroll(self.graph, node, count))

    def _instead(self, node: Node, replace: Callable[[], None]) -> None:
        """Continue with the nodes that replace a node."""
        before = node.prev()
        end = ir.insert_constant(self.graph, None, node).node()
        end.moveAfter(node)
        replace()
        for added in ir.nodes_between(before, end):
            self.memory.at = added
            self.node(added)
        self.dead.append(end)

    def _inner(self, rewrite: Any, node: Node) -> None:
        self.depth += 1
        rewrite(self, node)
        self.depth -= 1

    def _read_container(self, kind: str, node: Node, values: list[Value]) -> bool:
        """Resolve a read of a container with known elements. The node is then dead, and is removed
        by dead code elimination.
        """
        if not values or values[0].type().kind() not in _BOXES:
            return False
        box = self.memory.alias(values[0])
        is_resolved = box.items is not None and containers.READERS[kind](
            self.memory, node, box
        )
        if is_resolved:
            self.dead.append(node)
        return is_resolved

    def _define(self, node: Node, kind: str, values: list[Value]) -> None:
        """Record the values with which the outputs of a node share memory."""
        memory = self.memory
        is_view = kind in VIEWS and not any(
            value.type().kind() in _BOXES for value in (values[0], node.output())
        )
        if is_view or kind in LISTS_OF_VIEWS:
            parent = memory.alias(values[0])
            memory.define(node.output(), parent.storage, parent, view=node)
        elif (
            kind in ("prim::ListUnpack", "aten::__getitem__")
            and memory.alias(values[0]).view is not None
        ):
            self._elements(node, kind, memory.alias(values[0]))
        # the node now reads their current content, which is not shared
        elif others := sources(node, values):
            built = copies_container(node)
            for output in node.outputs():
                memory.linked(output, others, built=built)
                memory.alias(output).storage.repeats |= kind in REPEATING
        else:
            self._fresh(node.outputs())

    def _fresh(self, values: Any) -> None:
        """Record values that share no memory. Their age identifies the block that created them."""
        for value in values:
            if holds(value):
                self.memory.alias(value)

    def _elements(self, node: Node, kind: str, holder: Alias) -> None:
        """The element of a list of views is a view. An element at an unknown index may be any of
        them.
        """
        memory = self.memory
        at = 0
        if kind != "prim::ListUnpack":
            at = ir.constant(node.inputsAt(1))
        if at is None or at < 0:
            return self._some_element(node, holder)
        elements = [
            memory.define(output, holder.storage, holder, element=i)
            for i, output in enumerate(node.outputs(), at)
        ]
        for element in elements:
            element.siblings = [
                sibling for sibling in elements if sibling is not element
            ]

    def _some_element(self, node: Node, holder: Alias) -> None:
        """An element of a list. Element i of unbind is a select; an element of another list may be
        any of its memory.
        """
        memory = self.memory
        view = holder.view
        if view.kind() != "aten::unbind" or holder.parent is None:
            return memory.linked_to(node.output(), [holder])
        base = memory.now(holder.parent)
        select = ir.insert(
            self.graph, "aten::select", [base, view.inputsAt(1), node.inputsAt(1)], node
        )
        memory.define(node.output(), holder.storage, holder.parent, view=select)

    def _write(self, node: Node) -> None:
        """Replace one in-place node by the new content of the written tensor."""
        memory = self.memory
        target = node.inputsAt(0)
        self.dead.append(node)
        if target.type().kind() in _BOXES:
            return containers.write(memory, node)
        alias = memory.alias(target)
        if written_inputs(node) != [0]:
            raise cannot(node, "writes an argument other than its first")
        old = memory.now(alias)
        self._refuse_overlaps(node, alias)
        self.refresh(node, ir.inputs(node))
        if node.kind() in VIEWS_IN_PLACE:
            return self._view_in_place(node, alias, old)
        new = inplace.result(memory.emit, node, old)
        if new is None:
            raise cannot(node, "has no out-of-place variant")
        memory.write(alias, new, node)
        memory.same(node.output(), alias)

    def _refuse_overlaps(self, node: Node, alias: Alias) -> None:
        """Raise if the written elements depend on the memory of the tensor, not only on content."""
        if inplace.depends_on_strides(node) and alias.may_share:
            raise cannot(node, "the elements that it writes depend on strides")
        is_part = alias.parent is not None or node.kind() in UNCHECKED
        if alias.storage.repeats and is_part:
            raise cannot(node, "elements of the written tensor may share memory")
        if reads_written_memory(self.memory, node, alias):
            raise cannot(node, "may read elements that it wrote before")

    def _view_in_place(self, node: Node, alias: Alias, old: Value) -> None:
        """Handle `x.unsqueeze_(0)`: every name of this tensor is a view of it from here on."""
        if self.depth:
            raise cannot(
                node, "changes the shape of a tensor in only one branch or iteration"
            )
        kind = node.kind().removesuffix("_")
        view = ir.insert(self.graph, kind, [old, *ir.inputs(node)[1:]], node)
        inner = Alias(
            alias.current,
            alias.storage,
            alias.parent,
            alias.view,
            alias.element,
            alias.version,
        )
        self.memory.rename(alias, inner)
        new = self.memory.define(view.output(), alias.storage, inner, view=view)
        self.memory.journal.note(alias)
        alias.current = new.current
        alias.parent = inner
        alias.view = view
        alias.element = None
        self.memory.same(view.output(), alias)
        self.memory.same(node.output(), alias)
