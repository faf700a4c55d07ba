"""Constants without axes that torch's executor takes for Python numbers.

Before it runs a graph, torch's executor (`CanonicalizeOps`) replaces a constant tensor of no axes
by a number where it is the second operand of `add`, `sub`, `mul` or `div`. That is how a trace that
was saved and loaded keeps `ids * 0.5` in float32: the file holds a float64 tensor, which alone
would give float64. `_jit_interpret_graph`, which runs graphs while lowering, has no such step, so
the graph has to distinguish constants that are numbers from those that are tensors.
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
    """Replace the constants that torch's executor takes for numbers by numbers.

    To be called before attributes become constants: the executor leaves a buffer a tensor. A bool
    stays a tensor, for which no operator takes a number.
    """
    for node, tensor in _second_operands(graph):
        if tensor.dtype != torch.bool:
            number = ir.insert_constant(graph, tensor.item(), node, node.inputsAt(1).node())
            node.replaceInput(1, number)


def keep_constants_tensors(graph: Graph) -> None:
    """Let torch's executor read the remaining constants of no axes as tensors: behind a `detach` it
    does not take them for numbers.
    """
    for node, _ in _second_operands(graph):
        node.replaceInput(1, ir.insert(graph, "aten::detach", [node.inputsAt(1)], node).output())


def _second_operands(graph: Graph) -> Iterator[tuple[Any, torch.Tensor]]:
    """The nodes whose second operand the executor would replace, and that constant."""
    for node in ir.nodes_of(graph, *_KINDS):
        second = node.inputsAt(1)
        if ir.is_constant(second) and node.schema() in _SCHEMAS:
            tensor = second.node().t("value")
            if tensor.dim() == 0:
                yield node, tensor
