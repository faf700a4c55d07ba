"""Fuse products with a constant matrix to linear, in all forms in which files contain them."""

from __future__ import annotations

from typing import Any

import torch

from builder.graph_types import Block, Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes import Context, lowering_pass


def _matrix(value: Value) -> torch.Tensor | None:
    """The constant matrix that a value is or transposes, as a view without a copy."""
    node = value.node()
    is_transposed = node.kind() == "aten::transpose" and _last_two(node)
    if node.kind() == "aten::t" or is_transposed:
        inner = _matrix(node.inputsAt(0))
        return inner.t() if inner is not None else None
    matrix = ir.constant(value)
    if (
        isinstance(matrix, torch.Tensor)
        and matrix.dim() == 2
        and matrix.is_floating_point()
    ):
        return matrix
    return None


def _last_two(node: Node) -> bool:
    return {ir.constant(node.inputsAt(1)), ir.constant(node.inputsAt(2))} in (
        {0, 1},
        {-1, -2},
        {0, -1},
    )


def _bias(value: Value, matrix: torch.Tensor) -> bool:
    """Whether a value is a constant that can be the bias of a linear with this matrix. A sum
    accepts any dtype, a linear only that of its weight.
    """
    bias = ir.constant(value)
    return (
        isinstance(bias, torch.Tensor)
        and tuple(bias.shape) == (matrix.shape[1],)
        and bias.dtype == matrix.dtype
    )


def _linear(
    graph: Graph, node: Node, x: Value, matrix: torch.Tensor, bias: Value
) -> None:
    ir.replace(node, [Emit(graph, node).op("aten::linear", x, matrix.t(), bias)])


@lowering_pass("fuse-linear", touches=("aten::addmm", "aten::matmul", "aten::mm"))
def fuse_linear(graph: Graph, context: Context) -> None:
    """Rewrite addmm, and matmul or mm with or without a sum, to linear if the matrix is a constant
    and the addend a vector of its width.

    addmm with a beta or alpha other than 1 is left to unpack-addmm.
    """
    for node in ir.nodes_of(graph, "aten::addmm"):
        bias, x, weight, beta, alpha = ir.inputs(node)[:5]
        matrix = _matrix(weight)
        is_unscaled = (
            ir.constant(beta) == 1
            and ir.constant(alpha) == 1
            and node.inputsSize() == 5
        )
        if (
            is_unscaled
            and matrix is not None
            and _bias(bias, matrix)
            and not ir.is_kept(node)
        ):
            _linear(graph, node, x, matrix, bias)
    for node in ir.nodes_of(graph, "aten::matmul", "aten::mm"):
        matrix = _matrix(node.inputsAt(1))
        if matrix is not None and not ir.is_kept(node):
            _fuse_product(graph, node, matrix)


def _fuse_product(graph: Graph, node: Node, matrix: torch.Tensor) -> None:
    uses = [use for use in node.output().uses() if use.user.kind() != "prim::dtype"]
    queries = [
        use.user for use in node.output().uses() if use.user.kind() == "prim::dtype"
    ]
    add = None
    if len(uses) == 1:
        add = uses[0].user
    if (
        add is not None
        and add.kind() == "aten::add"
        and add.inputsSize() == 3
        and ir.constant(add.inputsAt(2)) == 1
    ):
        addend = add.inputsAt(1 - uses[0].offset)
        if (
            uses[0].offset < 2
            and _bias(addend, matrix)
            and _without_casts(add, queries)
        ):
            return _linear(graph, add, node.inputsAt(0), matrix, addend)
    none = ir.insert_constant(graph, None, node)
    return _linear(graph, node, node.inputsAt(0), matrix, none)


def _without_casts(add: Node, queries: list[Node]) -> bool:
    """Remove the casts of a sum to the dtype of its product, which an in-place sum (`add_`)
    creates: both have the dtype of the matrix. Returns False and removes nothing if the dtype has
    other uses.
    """
    casts = [use.user for query in queries for use in query.output().uses()]
    if not all(_is_cast(cast, add.output(), queries) for cast in casts):
        return False
    for cast in casts:
        ir.bypass(cast)
    for query in queries:
        query.destroy()
    return True


def _is_cast(node: Node, value: Value, queries: list[Node]) -> bool:
    """Whether a node is `value.to(dtype)` with the dtype of one of `queries`, and nothing else."""
    if node.kind() != "aten::to" or node.inputsSize() != 5:
        return False
    source, dtype, _, copy, memory_format = ir.inputs(node)
    is_of_value = dtype.node() in queries and source.unique() == value.unique()
    return is_of_value and ir.constant(copy) is False and ir.is_none(memory_format)


@lowering_pass("fuse-addmm-branches", touches=("prim::If",))
def fuse_addmm_branches(graph: Graph, context: Context) -> None:
    """Replace an if on the rank that computes the same linear in both branches, as in older files,
    by that linear.
    """
    for node in reversed(ir.nodes_of(graph, "prim::If")):
        sides = [_only_linear(block) for block in node.blocks()]
        if None not in sides and sides[0] == sides[1]:
            ir.splice(node, ir.first_block(node))


def _only_linear(block: Block) -> tuple[Any, ...] | None:
    """The inputs of the linear that a block consists of and returns; equal weights count as the
    same.
    """
    nodes = [
        node
        for node in block.nodes()
        if node.kind() != "prim::Constant" and node.hasUses()
    ]
    if (
        len(nodes) != 1
        or nodes[0].kind() != "aten::linear"
        or list(block.outputs()) != ir.outputs(nodes[0])
    ):
        return None
    return tuple(_identity(value) for value in nodes[0].inputs())


def _identity(value: Value) -> tuple[Any, ...]:
    tensor = ir.constant(value)
    if isinstance(tensor, torch.Tensor):
        return (tensor.data_ptr(), *tensor.shape, *tensor.stride())
    return ("none",) if ir.is_none(value) else (value.unique(),)
