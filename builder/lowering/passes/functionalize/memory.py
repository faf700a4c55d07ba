"""Reads and writes: the current content of a value, after every write to its memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from builder.errors import InPlaceError
from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.folding import QUANTIZERS
from builder.lowering.locations import source_line
from builder.lowering.passes.functionalize.alias import Alias, Items, Journal, Storage
from builder.lowering.passes.functionalize.sharing import holds
from builder.lowering.passes.functionalize.views import (
    LISTS_OF_VIEWS,
    REPEATING,
    VIEWS,
)
from builder.lowering.passes.quantization import DISABLE_OBSERVERS

_FIX = "write to a .clone() of the tensor, or assign the result to a new variable"


_TRAINING = {"aten::batch_norm": 5, "aten::instance_norm": 5, "aten::dropout": 2}
"""The argument that is true in a trace of a module in training mode."""


def _fix_of_constant(graph: Graph, node: Node) -> str:
    """What to do about a write to a constant of the model."""
    if node.kind() == "aten::embedding_renorm_":
        return (
            "renormalize the embedding's weight once with torch.renorm, and set its max_norm to"
            " None"
        )
    if any(
        ir.constant(node.inputsAt(_TRAINING[node.kind()])) is True
        for node in ir.nodes_of(graph, *_TRAINING)
    ):
        return "the module was traced in training mode: call model.eval() before torch.jit.trace"
    quantized = any(graph.findNode(kind) is not None for kind in QUANTIZERS)
    return f"{DISABLE_OBSERVERS}, or {_FIX}" if quantized else _FIX


def cannot(node: Node, problem: str, fix: str = _FIX) -> InPlaceError:
    """The error for a write without a functional form."""
    return InPlaceError(
        f"{node.kind()} writes in place and {problem}", where=source_line(node), fix=fix
    )


@dataclass
class _Loop:
    """Memory from before `start` that the body of a loop reads. The next iteration reads it again,
    after the writes of this one.
    """

    start: int
    reads: set[Storage] = field(default_factory=set)


def _may_be(alias: Alias, container: str) -> bool:
    """Whether an alias has the type of a container, or a type that may hold one."""
    return container in str(alias.current.type().str())


def _repeats(alias: Alias | None) -> bool:
    """Whether several elements of a tensor may be one position of memory."""
    if alias is None or alias.storage.repeats:
        return alias is not None
    repeats = alias.view is not None and alias.view.kind() in REPEATING
    return repeats or _repeats(alias.parent)


class Memory:
    """The aliases of all values so far. New nodes are inserted before `at`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.journal = Journal()
        self.shared = ir.Constants(graph)
        self.at: Any = None
        self._aliases: dict[int, Alias] = {}
        self._loops: list[
            _Loop
        ] = []  # the loops around the current node, outermost first

    @property
    def emit(self) -> Emit:
        return Emit(self.graph, self.at, shared=self.shared)

    def alias(self, value: Value) -> Alias:
        """The alias of a value; a new one shares no memory."""
        alias = self._aliases.get(value.unique())
        if alias is not None:
            return alias
        items = self._constant_items(value)
        return self.define(
            value,
            Storage(constant=ir.is_constant(value)),
            items=items,
            contents=self._contents(items or []),
        )

    def _constant_items(self, value: Value) -> Items | None:
        """The elements of a constant list or dictionary, as constants beside it."""
        if not ir.is_constant(value) or value.type().kind() not in (
            "ListType",
            "DictType",
        ):
            return None
        elements = value.toIValue()
        if isinstance(elements, dict):
            return {
                key: ir.insert_constant(self.graph, element, value.node())
                for key, element in elements.items()
            }
        return [
            ir.insert_constant(self.graph, element, value.node())
            for element in elements
        ]

    def same(self, value: Value, alias: Alias) -> None:
        """Record that `value` is the same tensor or container object as `alias`."""
        self._aliases[value.unique()] = alias

    def define(
        self, value: Value, storage: Storage, parent: Alias | None = None, **fields: Any
    ) -> Alias:
        """Create an alias for `value` in `storage`."""
        alias = Alias(
            value,
            storage,
            parent,
            version=storage.version,
            born=self.journal.tick(),
            **fields,
        )
        storage.root = storage.root or alias
        self._aliases[value.unique()] = alias
        return alias

    def container(self, value: Value, items: Items) -> Alias:
        """A new list, tuple or dictionary with known elements."""
        return self.define(
            value, Storage(built=True), items=items, contents=self._contents(items)
        )

    def known(self, value: Value) -> bool:
        return value.unique() in self._aliases

    def linked(self, value: Value, others: list[Value], *, built: bool = False) -> None:
        """Record that `value` may share memory with any of `others`, values of the original graph,
        or with their elements. `built` is that of Storage.
        """
        aliases = [a for other in others for a in self.with_elements(self.alias(other))]
        self.linked_to(value, aliases, built=built)

    def storages(self, value: Value) -> list[Storage]:
        """The memory of a value of the original graph, and of its known elements."""
        return [alias.storage for alias in self.with_elements(self.alias(value))]

    def with_elements(self, alias: Alias) -> list[Alias]:
        """An alias, and the aliases of its known elements at every depth."""
        items: Iterable[Any] = alias.items or ()
        if isinstance(alias.items, dict):
            items = alias.items.values()
        aliases = [alias]
        for item in items:
            if holds(item):
                aliases += self.with_elements(self.alias(item))
        return aliases

    def linked_to(
        self, value: Value, aliases: Sequence[Alias], *, built: bool = False
    ) -> None:
        """Record that `value` may share the memory of any of these."""
        storage = Storage(built=built, repeats=any(map(_repeats, aliases)))
        storage.link(alias.storage for alias in aliases)
        self.define(value, storage)

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Inside the block, reads and writes belong to the body of a loop. They are undone at the
        end.
        """
        mark = self.journal.mark()
        self._loops.append(_Loop(self.journal.tick()))
        yield
        self._loops.pop()
        self.journal.undo(mark)

    def read(self, value: Value) -> Value:
        """The current replacement for `value` of the original graph."""
        alias = self._aliases.get(value.unique())
        current: Value = value
        if alias is not None:
            current = self.now(alias)
        return current

    def now(self, alias: Alias) -> Any:
        """The current value of an alias, recomputed from its base if the base was written since."""
        storage = alias.storage
        if storage.taint is not None:
            raise cannot(
                storage.taint, "a tensor that may share that memory is read afterwards"
            )
        for loop in self._loops:
            if storage.root is not None and storage.root.born < loop.start:
                loop.reads.add(storage)
        if alias.items is not None:
            return self._rebuilt(alias)
        if alias.version != storage.version:
            self.set(alias, self._again(alias), storage.version)
        return alias.current

    def set(self, alias: Alias, current: Value, version: int) -> None:
        self.journal.note(alias)
        alias.current = current
        alias.version = version

    def _again(self, alias: Alias) -> Value:
        """Recompute a view from the current content of its parent."""
        if alias.parent is None:
            raise cannot(
                alias.current.node(),
                "the memory that it writes to cannot be determined",
            )
        base = self.now(alias.parent)
        if alias.element is not None:
            return Emit(self.graph, self.at, alias.parent.view, self.shared).op(
                "aten::__getitem__", base, alias.element
            )
        kind = (
            "aten::reshape" if alias.view.kind() == "aten::view" else alias.view.kind()
        )
        emit = Emit(self.graph, self.at, alias.view, self.shared)
        return emit.op(
            kind, base, *ir.inputs(alias.view)[1:], type=alias.view.output().type()
        )

    def _contents(self, items: Items) -> tuple[int, ...]:
        values = items.values() if isinstance(items, dict) else items
        return tuple(self.read(value).unique() for value in values)

    def _rebuilt(self, alias: Alias) -> Any:
        """A container with the current content of its elements; the same value if nothing
        changed.
        """
        assert alias.items is not None
        contents = self._contents(alias.items)
        if contents != alias.contents:
            current = self._construct(alias)
            self.journal.note(alias)
            alias.current = current
            alias.contents = contents
        return alias.current

    def _construct(self, alias: Alias) -> Value:
        kind_of = alias.current.type()
        if isinstance(alias.items, dict):
            values = []
            for key, item in alias.items.items():
                values += [self.emit.constant(key), self.read(item)]
            return self.emit.op("prim::DictConstruct", *values, type=kind_of)
        values = [self.read(item) for item in alias.items or ()]
        kind = "prim::ListConstruct"
        if kind_of.kind() == "TupleType":
            kind = "prim::TupleConstruct"
        return self.emit.op(kind, *values, type=kind_of)

    def write(self, alias: Alias, new: Value, node: Node) -> None:
        """Write `new` to `alias` and to its bases."""
        if alias.storage.constant:
            problem = (
                "changes a constant of the model, which would stay changed for the next"
                " request"
            )
            raise cannot(node, problem, _fix_of_constant(self.graph, node))
        emit = self.emit
        version = self.journal.tick()
        storage = alias.storage
        contents = [(alias, new)]
        contents += [
            (sibling, sibling.current)
            for sibling in alias.siblings
            if sibling.version == storage.version
        ]
        while alias.parent is not None:
            alias, new = self._into_parent(emit, alias, new, node)
            contents.append((alias, new))
        self.taint(storage, node)
        for changed, current in contents:
            self.set(changed, current, version)
        storage.version = version

    def _into_parent(
        self, emit: Emit, alias: Alias, new: Value, node: Node
    ) -> tuple[Alias, Any]:
        parent = alias.parent
        assert parent is not None
        if alias.element is not None:
            base = parent.parent
            holder = parent.view
            assert base is not None
            content = LISTS_OF_VIEWS[holder.kind()](
                emit, holder, self.now(base), new, alias.element
            )
        else:
            base = parent
            holder = alias.view
            content = VIEWS[holder.kind()](emit, holder, self.now(base), new)
        if content is None:
            raise cannot(
                node,
                f"it writes to a view from {holder.kind()}, and such writes cannot be traced",
            )
        return base, content

    def taint(self, storage: Storage, node: Node) -> None:
        """Mark memory that may be `storage` as unknown from here on."""
        self._taint(storage.linked - {storage} if storage.linked else (), node)

    def taint_containers(self, box: Alias, node: Node) -> None:
        """Mark containers that may be `box`, or may hold it, as unknown from here on."""
        linked = box.storage.linked - {box.storage} if box.storage.linked else ()
        type_of_box = box.current.type().str()
        containers = []
        for storage in linked:
            are_distinct = box.storage.built and storage.built
            if storage.root is None or not _may_be(storage.root, type_of_box):
                continue
            if are_distinct and storage.root.current.type().str() == type_of_box:
                continue  # two lists that only share elements; neither can hold the other
            containers.append(storage)
        self._taint(containers, node)

    def _taint(self, storages: Iterable[Storage], node: Node) -> None:
        for storage in storages:
            if any(storage in loop.reads for loop in self._loops):
                raise cannot(
                    node, "a tensor that may share that memory is read in the same loop"
                )
            storage.taint = node

    def renew(self, root: Alias, current: Value) -> None:
        """Set the whole memory of a root to `current`. Its views are recomputed when they are
        read.
        """
        version = self.journal.tick()
        self.set(root, current, version)
        root.storage.version = version

    def forget_items(self, alias: Alias) -> None:
        """Treat a container as one of unknown length with its current value."""
        current = self.now(alias)
        self.journal.note(alias)
        alias.storage.link(inner.storage for inner in self.with_elements(alias))
        alias.current = current
        alias.items = None
        alias.version = alias.storage.version

    def rename(self, alias: Alias, inner: Alias) -> None:
        """Let the views of `alias` be views of `inner`, which replaces it in the storage."""
        for known in self._aliases.values():
            view: Alias | None = known
            while view is not None:  # an inner alias has no value of its own
                if view.parent is alias:
                    view.parent = inner
                view = view.parent
        if alias.storage.root is alias:
            alias.storage.root = inner
