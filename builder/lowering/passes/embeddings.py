"""Embeddings with `max_norm`, which renormalize the rows of their weight in place."""

from __future__ import annotations

import torch

from builder.graph_types import Graph, Node, NodeList, Value
from builder.lowering import ir
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.functionalize.sharing import writes

_RENORM = "aten::embedding_renorm_"
_LOOKUPS = ("aten::embedding", "aten::embedding_bag")


@lowering_pass("renormalize-embeddings", touches=(_RENORM,))
def renormalize_embeddings(graph: Graph, context: Context) -> None:
    """Renormalize all rows of a constant weight once, and remove `embedding_renorm_`, where the
    model reads only rows that it renormalized before.

    A request renormalizes the rows that it looks up, and a second time changes nothing. If other
    operators read the weight, their results depend on earlier requests, and functionalize refuses
    the model.
    """
    nodes = [node for node in ir.nodes_of(graph, _RENORM) if not ir.is_kept(node)]
    for weight in [_weight(node.inputsAt(0)) for node in nodes]:
        if isinstance(weight, torch.Tensor):
            _renormalize(graph, weight)


def _renormalize(graph: Graph, weight: torch.Tensor) -> None:
    nodes = [
        node
        for node in ir.nodes_of(graph, _RENORM)
        if _shares(node.inputsAt(0), weight)
    ]
    norms = {tuple(map(ir.constant, ir.inputs(node)[2:])) for node in nodes}
    if len(norms) != 1 or None in (norm := norms.pop()):
        return
    if not _reads_renormalized(graph, graph.return_node(), weight, frozenset()):
        return
    rows = torch.arange(len(weight))
    new = torch.embedding_renorm_(weight.detach().clone(), rows, *norm)
    for node in nodes:
        node.destroy()
    for node in ir.nodes_of(graph, "prim::Constant"):
        if _shares(node.output(), weight):
            ir.replace(node, [ir.insert_constant(graph, new, node)])


def _weight(value: Value) -> object:
    """The constant that a value is, also behind detach; None for other values."""
    while value.node().kind() == "aten::detach":
        value = value.node().inputsAt(0)
    return ir.constant(value)


def _shares(value: Value, weight: torch.Tensor) -> bool:
    """Whether a value is a constant in the memory of `weight`."""
    tensor = _weight(value)
    return isinstance(tensor, torch.Tensor) and (
        tensor.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()
    )


def _reads_renormalized(
    block: NodeList, end: Node, weight: torch.Tensor, renormalized: frozenset[int]
) -> bool:
    """Whether the nodes of a block read the weight only by indices that it renormalized before.
    `renormalized` are the values of these indices.
    """
    for node in [*block.nodes(), end]:
        if node.kind() == _RENORM and _shares(node.inputsAt(0), weight):
            renormalized |= {node.inputsAt(1).unique()}
        elif writes(node):
            renormalized = frozenset()  # the indices may have changed
        if not _allowed(node, weight, renormalized) or not all(
            _reads_renormalized(inner, inner.returnNode(), weight, renormalized)
            for inner in ir.blocks_of(node)
        ):
            return False
    return True


def _allowed(node: Node, weight: torch.Tensor, renormalized: frozenset[int]) -> bool:
    """Whether a node does not read the weight, or reads only renormalized rows."""
    reads = [value for value in node.inputs() if _shares(value, weight)]
    if not reads or node.kind() == "aten::detach":
        return True
    tensor = _weight(node.inputsAt(0))
    is_whole = isinstance(tensor, torch.Tensor) and tensor.is_set_to(weight)
    is_lookup = node.kind() in _LOOKUPS or (
        node.kind() == _RENORM and not node.output().uses()
    )
    by_row = is_lookup and node.inputsAt(1).unique() in renormalized
    return by_row and is_whole and len(reads) == 1
