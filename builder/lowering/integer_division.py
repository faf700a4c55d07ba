"""Guard divisions of integers in a graph that torch serves.

On the CPU, torch divides with the processor's instruction, which ends the process where the
smallest integer is divided by -1. Only truncating divisions of tensors and divisions of numbers do
so.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from builder.graph_types import Graph, Node
from builder.lowering import ir

_SOURCE = """
def tensors(x: Tensor, divisor: Tensor, rounding: Optional[str]):
    if not (x.is_signed() and divisor.is_signed()):
        return torch.div(x, divisor, rounding_mode=rounding)
    negates = divisor == -1
    quotient = torch.div(x, divisor.masked_fill(negates, 1), rounding_mode=rounding)
    return torch.where(negates, -quotient, quotient)

def tensor_by_number(x: Tensor, divisor: int, rounding: Optional[str]):
    if divisor == -1 and x.is_signed():
        return -torch.div(x, 1, rounding_mode=rounding)
    return torch.div(x, divisor, rounding_mode=rounding)

def in_place(x: Tensor, divisor: Tensor, rounding: Optional[str]):
    if not (x.is_signed() and divisor.is_signed()):
        return x.div_(divisor, rounding_mode=rounding)
    negates = divisor == -1
    x.div_(divisor.masked_fill(negates, 1), rounding_mode=rounding)
    return x.copy_(torch.where(negates, -x, x))

def in_place_by_number(x: Tensor, divisor: int, rounding: Optional[str]):
    if divisor == -1 and x.is_signed():
        return x.div_(1, rounding_mode=rounding).neg_()
    return x.div_(divisor, rounding_mode=rounding)

def quotient(x: int, divisor: int):
    if divisor == -1:
        return -x
    return x // divisor

def remainder(x: int, divisor: int):
    if divisor == -1:
        return 0
    return x % divisor

def quotient_and_remainder(x: int, divisor: int):
    if divisor == -1:
        return (-x, 0)
    return divmod(x, divisor)
"""
_OF_TENSORS = {
    "aten::div": ("tensors", "tensor_by_number"),
    "aten::divide": ("tensors", "tensor_by_number"),
    "aten::div_": ("in_place", "in_place_by_number"),
    "aten::divide_": ("in_place", "in_place_by_number"),
}
_OF_NUMBERS = {
    "aten::floordiv": "quotient",
    "aten::remainder": "remainder",
    "aten::divmod": "quotient_and_remainder",
}
"""By operator, the functions of `_SOURCE` that replace it."""


def guard(graph: Graph) -> None:
    """Divide by 1 where the divisor is -1, and negate the quotient. All quotients that torch can
    represent are unchanged, those of floats included.
    """
    for node in ir.nodes_of(graph, *_OF_TENSORS, *_OF_NUMBERS):
        name = _function(node)
        if name:
            with ir.inserting(graph, node):
                results = graph.insertGraph(_graph(name), ir.inputs(node))
            if len(results) < node.outputsSize():
                types = [value.type() for value in node.outputs()]
                pair = ir.insert(graph, "prim::TupleUnpack", results, node, types)
                results = ir.outputs(pair)
            ir.replace(node, results)


def _function(node: Node) -> str | None:
    """The function that replaces a division; None for one that needs no guard."""
    kinds = [value.type().kind() for value in node.inputs()]
    if node.kind() in _OF_NUMBERS:
        is_unsafe = kinds == ["IntType", "IntType"] and _may_be_minus_one(node)
        return _OF_NUMBERS[node.kind()] if is_unsafe else None
    if len(kinds) != 3 or kinds[0] != "TensorType":
        return None
    rounding = node.inputsAt(2)
    if ir.is_none(rounding) or ir.constant(rounding) not in ("trunc", None):
        return None
    by_tensor, by_number = _OF_TENSORS[node.kind()]
    if kinds[1] == "TensorType":
        return by_tensor
    if kinds[1] == "IntType" and _may_be_minus_one(node):
        return by_number
    return None


def _may_be_minus_one(node: Node) -> bool:
    return ir.constant(node.inputsAt(1)) in (None, -1)


@lru_cache(maxsize=len(_OF_NUMBERS) + len(_OF_TENSORS))
def _graph(name: str) -> Any:
    functions: Any = torch.jit.CompilationUnit(_SOURCE)
    return getattr(functions, name).graph
