"""Graph operations that all passes share, on `torch._C.Graph`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, cast

import torch

from builder.analysis import CHANGES as CHANGES
from builder.analysis import constant as constant
from builder.analysis import int_list as int_list
from builder.analysis import is_constant as is_constant
from builder.analysis import is_none as is_none
from builder.analysis import list_items as list_items
from builder.analysis import list_length as list_length
from builder.graph_types import Block as Block
from builder.graph_types import Graph as Graph
from builder.graph_types import Node as Node
from builder.graph_types import NodeList as NodeList
from builder.graph_types import Schema as Schema
from builder.graph_types import Type as Type
from builder.graph_types import Value as Value
from builder.names import unique_name
from builder.reachable import reachable

C: Any = torch._C  # without types: torch's stubs are incomplete
TENSOR: Type = C.TensorType.get()
CPU = torch.device("cpu")
INT: Type = C.IntType.get()
NONE: Type = C.NoneType.get()


def walk(block: NodeList) -> Iterator[Node]:
    """Every node of a graph or block in program order, an If or Loop before the nodes of its
    blocks.

    The list of each block is taken when it is entered, so a pass may destroy the node that it
    received.
    """
    for node in list(block.nodes()):
        if node.kind() not in _MAY_HAVE_BLOCKS:
            yield node
            continue
        inner = list(node.blocks())
        yield node
        for child in inner:
            yield from walk(child)


# Reading the blocks of a node costs 7 us even if it has none, so only these kinds are read.
_MAY_HAVE_BLOCKS = frozenset(
    f"prim::{name}"
    for name in ("If", "Loop", "With", "Closure", "FunctionalGraph", "fork")
)


def blocks_of(node: Node) -> list[Block]:
    """The node's blocks."""
    if node.kind() in _MAY_HAVE_BLOCKS:
        return list(node.blocks())
    return []


def nodes_of(graph: Graph, *kinds: str) -> list[Node]:
    """All nodes of these kinds, at every depth. torch searches, which is faster than walking in
    Python.
    """
    return [node for kind in kinds for node in graph.findAllNodes(kind)]


def first_node(graph: Graph) -> Node:
    """The first node of the graph, or its end if it has none."""
    return next(iter(graph.nodes()), graph.return_node())


def branch_ends(value: Value) -> list[Value]:
    """The value that each branch of an if returns for `value`, an output of the if."""
    blocks = value.node().blocks()
    return [list(block.outputs())[value.offset()] for block in blocks]


def first_block(node: Node) -> Block:
    """The body of a loop, or the branch of an if that is taken if its condition is true."""
    return next(iter(node.blocks()))


def unique_names(values: Iterable[Value]) -> list[str]:
    """A name for each value: `x` for `%x.1`, and `x_2` if another value has that name."""
    stems = [value.debugName().split(".")[0] or "input" for value in values]
    names: list[str] = []
    for name in stems:
        if name in names:
            name = unique_name(name, {*names, *stems})
        names.append(name)
    return names


def outputs(node: Node) -> list[Value]:
    """The node's outputs as a list."""
    return list(node.outputs())


def inputs(node: Node) -> list[Value]:
    """The node's inputs as a list."""
    return list(node.inputs())


@lru_cache(maxsize=4096)
def parse_schema(text: str) -> Schema:
    """The parsed form of a schema string. It is cached, because parsing costs more than a pass over
    a node.
    """
    return cast(Schema, C.parse_schema(text))


def schema(node: Node) -> Schema | None:
    """The parsed schema of an operator node; None for `prim::` nodes without one."""
    text = node.schema()
    return None if text == "(no schema)" else parse_schema(text)


@contextmanager
def inserting(graph: Graph, node: Node) -> Iterator[None]:
    """Insert nodes before `node` inside the block. Nodes without a source range get its range."""
    before = node.prev()
    with graph.insert_point_guard(node):
        yield
    inherit(before, node, node)


def adopt(node: Node, origin: Node) -> None:
    """Give a new node the source location of its origin, and its fallback mark."""
    node.copyMetadata(origin)
    if origin.hasAttribute(FALLBACK):
        mark(node)


def inherit(first: Node, last: Node, origin: Node) -> None:
    """Give every node strictly between `first` and `last`, and in their blocks, the metadata of
    `origin`.
    """
    for node in nodes_between(first, last):
        _inherit(node, origin)


def nodes_between(first: Node, last: Node) -> list[Node]:
    """The nodes strictly between two of one block, in order."""
    nodes = []
    node = last.prev()
    while node != first:
        nodes.append(node)
        node = node.prev()
    return nodes[::-1]


def _inherit(node: Node, origin: Node) -> None:
    adopt(node, origin)
    for block in blocks_of(node):
        for child in block.nodes():
            _inherit(child, origin)


def insert(
    graph: Graph,
    kind: str,
    args: Iterable[Value],
    before: Node,
    types: Iterable[Type] = (),
    origin: Node | None = None,
) -> Node:
    """Insert one node before `before` with the metadata of `origin` (default: `before`); `types`
    are its outputs' types (default: one Tensor).
    """
    declared = list(types) or [TENSOR]
    node = graph.create(kind, list(args), len(declared))
    node.insertBefore(before)
    adopt(node, origin or before)
    for value, kind_of in zip(node.outputs(), declared, strict=True):
        value.setType(kind_of)
    return node


def insert_constant(
    graph: Graph, value: object, before: Node, origin: Node | None = None
) -> Value:
    """Insert a constant before `before` with the metadata of `origin` (default: `before`)."""
    with graph.insert_point_guard(before):
        inserted = graph.insertConstant(
            value.detach() if isinstance(value, torch.Tensor) else value
        )
    inserted.node().copyMetadata(origin or before)
    return inserted


def insert_constants(graph: Graph, values: Sequence[Any], before: Node) -> list[Value]:
    """Insert many constants before `before`, in order.

    The middle one first: torch numbers nodes by halving the gap between neighbors, and renumbers
    the whole graph when a gap is used up, which happens after 40 insertions at one point.
    """
    if not values:
        return []
    half = len(values) // 2
    middle = insert_constant(graph, values[half], before)
    left = insert_constants(graph, values[:half], middle.node())
    return [*left, middle, *insert_constants(graph, values[half + 1 :], before)]


class Constants:
    """Constants at the top of a graph that a pass uses repeatedly, each created once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._constants: dict[str, Value] = {}

    def __call__(self, value: object) -> Value:
        """The value of a constant: a number, a string, None, or a list of them."""
        existing = self._constants.get(repr(value))
        if existing is None:
            top = first_node(self._graph)
            existing = insert_constant(self._graph, value, top)
            self._constants[repr(value)] = existing
        return existing


def replace(node: Node, values: Iterable[Value]) -> None:
    """Replace all uses of the node's outputs by `values`, and destroy the node."""
    for old, new in zip(node.outputs(), values, strict=True):
        old.replaceAllUsesWith(new)
    node.destroy()


def bypass(node: Node) -> None:
    """Replace all uses of the node's only output by its first input, and destroy the node."""
    replace(node, [node.inputsAt(0)])


def return_tuple(graph: Graph, values: Sequence[Value]) -> None:
    """Let a tuple of these values be the graph's only output."""
    tuple_type = C.TupleType([value.type() for value in values])
    returned = insert(
        graph, "prim::TupleConstruct", values, graph.return_node(), [tuple_type]
    )
    for _ in list(graph.outputs()):
        graph.eraseOutput(0)
    graph.registerOutput(returned.output())


def read_tuples(graph: Graph) -> bool:
    """Replace the elements of tuples that the graph builds by the values that it builds them from.
    Returns whether any was replaced.
    """
    replaced = False
    for node in nodes_of(graph, "prim::TupleUnpack"):
        packed = node.inputsAt(0).node()
        if packed.kind() == "prim::TupleConstruct":
            replace(node, inputs(packed))
            replaced = True
    for node in nodes_of(graph, "prim::TupleConstruct"):
        if not node.hasUses():
            node.destroy()
    return replaced


def splice(node: Node, block: Block) -> None:
    """Replace an If by the nodes of one of its blocks."""
    for child in list(block.nodes()):
        child.moveBefore(node)
    replace(node, list(block.outputs()))


def random_operator(graph: Graph) -> str | None:
    """The kind of the first node with random results, or None."""
    for node in walk(graph):
        if node.isNondeterministic() and not _drops_nothing(node):
            return str(node.kind())
    return None


def _drops_nothing(node: Node) -> bool:
    """Whether the dropout of a node, such as of `aten::lstm`, has no effect."""
    parsed = schema(node)
    names = [argument.name for argument in parsed.arguments] if parsed else []
    arguments = dict(zip(names, node.inputs(), strict=False))
    return any(
        name in ("train", "training", "dropout", "dropout_p") and constant(value) == 0
        for name, value in arguments.items()
    )


# An attribute of nodes. torch's passes keep it, and never merge a node that has it with a node that
# does not.
FALLBACK = "run_in_torch"


def mark(node: Node) -> None:
    """Mark a node to run in torch. Constants are not marked. Function calls are marked until they
    are inlined.
    """
    if node.kind() != "prim::Constant":
        node.i_(FALLBACK, 1)


def in_fallback(node: Node) -> bool:
    """Whether a node belongs to a module that must run in torch."""
    return bool(node.hasAttribute(FALLBACK))


CONVERTED_WHOLE: set[str] = set()
"""Operators such as `aten::silu` with a user's converter. No pass decomposes them."""


def is_kept(node: Node) -> bool:
    """Whether passes must not rewrite a node: torch runs it, or it has a user's converter."""
    if in_fallback(node):
        return True
    return bool(CONVERTED_WHOLE) and node.schema().partition("(")[0] in CONVERTED_WHOLE


def split_uninitialized(graph: Graph) -> None:
    """Create a separate node for every uninitialized value. torch's tuple lowering leaves one node
    with an output for each element, and its interpreter then reads past its stack.
    """
    for node in nodes_of(graph, "prim::Uninitialized"):
        if node.outputsSize() > 1:
            alone = [
                insert(graph, node.kind(), (), node, [value.type()]).output()
                for value in node.outputs()
            ]
            replace(node, alone)


READS_DATA = frozenset(
    f"aten::{name}"
    for name in """
        Bool Int Float item is_nonzero equal allclose _local_scalar_dense ScalarImplicit IntImplicit
        FloatImplicit tolist
    """.split()
)
"""Operators that read a number from a tensor's data."""


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor on the CPU, not quantized. A contiguous one is not copied, whatever its
    strides along axes of size 1.
    """
    data = tensor.detach().contiguous()
    return data.as_strided((data.numel(),), (1,)).view(torch.uint8)


def is_of_data(value: Value) -> bool:
    """Whether a number comes from a tensor's data."""

    def sources(value: Value) -> list[Value]:
        node = value.node()
        returned = (end for inner in blocks_of(node) for end in inner.outputs())
        return [v for v in (*node.inputs(), *returned) if str(v.type()) != "Tensor"]

    return str(value.type()) != "Tensor" and any(
        number.node().kind() in READS_DATA
        and any(str(v.type()) == "Tensor" for v in number.node().inputs())
        for number in reachable([value], sources)
    )
