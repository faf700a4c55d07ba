"""0-d constants that torch's executor treats as Python numbers.

Before it runs a graph, torch's executor (`CanonicalizeOps`) replaces a 0-d constant tensor by a
number if it is the second operand of `add`, `sub`, `mul` or `div`. For this reason a saved trace
computes `ids * 0.5` in float32, although the file has a float64 tensor. `_jit_interpret_graph`,
which runs graphs during lowering, has no such step. The graph therefore has to distinguish
constants that are numbers from constants that are tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from builder.graph_types import Graph
from builder.lowering import ir

_KINDS = ("aten::add", "aten::sub", "aten::mul", "aten::div")
_SCHEMAS = frozenset(
    [
        "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        "aten::sub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
        "aten::mul.Tensor(Tensor self, Tensor other) -> Tensor",
        "aten::div.Tensor(Tensor self, Tensor other) -> Tensor",
    ]
)


def constants_to_numbers(graph: Graph) -> None:
    """Replace the constants that torch's executor treats as numbers by numbers.

    Call it before attributes become constants, because the executor does not replace buffers. A
    bool stays a tensor, because no operator accepts a bool as a number.
    """
    for node, tensor in _second_operands(graph):
        if tensor.dtype != torch.bool:
            number = ir.insert_constant(
                graph, tensor.item(), node, node.inputsAt(1).node()
            )
            node.replaceInput(1, number)


def keep_constants_tensors(graph: Graph) -> None:
    """Make torch's executor read the remaining 0-d constants as tensors: after a `detach` it does
    not treat them as numbers.
    """
    for node, _ in _second_operands(graph):
        node.replaceInput(
            1, ir.insert(graph, "aten::detach", [node.inputsAt(1)], node).output()
        )


def _second_operands(graph: Graph) -> Iterator[tuple[Any, torch.Tensor]]:
    """The nodes whose second operand the executor would replace, with that constant."""
    for node in ir.nodes_of(graph, *_KINDS):
        second = node.inputsAt(1)
        if ir.is_constant(second) and node.schema() in _SCHEMAS:
            tensor = second.node().t("value")
            if tensor.dim() == 0:
                yield node, tensor
