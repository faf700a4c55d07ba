"""Merge equal constants and equal operators. torch's own passes put every tensor constant into one
bucket of a hash table and compare all pairs, which is quadratic in the number of weights.

These passes compare lines of the graph's text, which torch prints much faster than Python walks a
graph, and look at nodes only if two lines are equal.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from builder.graph_types import Graph, Node
from builder.lowering import ir
from builder.lowering.folding import may_write
from builder.lowering.passes import Context, lowering_pass

_CONSTANT = re.compile(
    r"^ *%\S+ : (.*?) = prim::Constant(.*?)\(\)(?:, scope: [^#]*)?(?: # .*)?$"
)
_VALUE = re.compile(r"%[\w.]+")
# Lists of numbers and strings are printed in full; tensors, tuples and objects are not.
_SHOWN = frozenset(
    [
        "int",
        "float",
        "bool",
        "str",
        "Device",
        "NoneType",
        "complex",
        "int[]",
        "float[]",
        "bool[]",
        "str[]",
    ]
)


@lowering_pass("pool-constants")
def pool_constants(graph: Graph, context: Context) -> None:
    """Keep the first of equal constants, moved to the top of the graph if it is in a branch or a
    loop. Tensors are equal if all of their bytes are equal.
    """
    top = next(iter(graph.nodes()), None)
    nodes = ir.nodes_of(graph, "prim::Constant")
    lines = (line for line in str(graph).splitlines() if " = prim::Constant" in line)
    first_nodes: dict[Any, Any] = {}
    tensors = _Tensors()
    for node, (kind, value) in zip(nodes, map(_shown, lines), strict=True):
        key = (kind, value)
        if kind not in _SHOWN:
            key = tensors.key(node.output().toIValue(), node)
        first = first_nodes.setdefault(key, node)
        if first is not node:
            node.output().replaceAllUsesWith(first.output())
            node.destroy()
        elif node.owningBlock().owningNode() is not None:
            node.moveBefore(top)


def _shown(line: str) -> tuple[str, str]:
    """The type and the value of a constant, as torch prints them."""
    match = _CONSTANT.match(line)
    assert match is not None, line
    return match[1], match[2]


class _Tensors:
    """The tensors so far, in buckets by shape, dtype, and the first and last bytes."""

    def __init__(self) -> None:
        self._buckets: dict[Any, list[torch.Tensor]] = {}

    def key(self, value: list[torch.Tensor | None] | torch.Tensor, node: Node) -> Any:
        """A key that is equal exactly for equal tensors. A value that is not a plain tensor has a
        unique key.
        """
        if not isinstance(value, torch.Tensor) or not _is_comparable(value):
            return node
        bucket = (value.dtype, value.shape, _ends(value))
        tensors = self._buckets.setdefault(bucket, [])
        for at, tensor in enumerate(tensors):
            if _same_bytes(value, tensor):
                return (*bucket, at)
        tensors.append(value)
        return (*bucket, len(tensors) - 1)


def _is_comparable(tensor: torch.Tensor) -> bool:
    in_memory = (
        tensor.layout is torch.strided
        and tensor.device == ir.CPU
        and not tensor.is_quantized
    )
    return (
        in_memory
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _ends(tensor: torch.Tensor) -> bytes:
    count = tensor.numel() * tensor.element_size()
    start = tensor.data_ptr()
    size = min(count, 64)
    if count:
        return ctypes.string_at(start, size) + ctypes.string_at(
            start + count - size, size
        )
    return b""


def _same_bytes(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.data_ptr() == second.data_ptr() or not first.numel():
        return True
    return torch.equal(ir.bytes_of(first), ir.bytes_of(second))


_OPERATOR = re.compile(r"^ *(%.+?) = ((?:aten|prim)::\w+)((?:\[[^\]]*\])?\([^)]*\))")
_NEVER = frozenset(
    f"prim::{name}"
    for name in ("Constant", "If", "Loop", "Uninitialized", "PythonOp", "GetAttr")
)


@lowering_pass("eliminate-common-subexpressions")
def eliminate_common_subexpressions(graph: Graph, context: Context) -> None:
    """Compute equal operators on the same values once, except random operators. Two outputs of the
    graph stay two values. A graph with in-place writes is passed to torch's own elimination.
    """
    lines = [_parsed(line) for line in str(graph).splitlines()]
    kinds = {line.kind for line in lines}
    keys = [line.key for line in lines if line.key]
    if any(map(may_write, kinds)):
        ir.C._jit_pass_cse(graph)
    elif len(set(keys)) < len(keys):
        _merge(graph, lines)


class _Line(NamedTuple):
    """One line of the text. `key` is equal for equal operators on the same values, and empty for
    nodes that are never merged.
    """

    text: str
    kind: str = ""
    outputs: str = ""
    key: str = ""


def _parsed(line: str) -> _Line:
    match = _OPERATOR.match(line)
    if match is None:
        return _Line(line, "prim::" if "= " in line else "")
    outputs, kind, arguments = match.groups()
    return _Line(line, kind, outputs, "" if kind in _NEVER else kind + arguments)


def _merge(graph: Graph, lines: list[_Line]) -> None:
    """Replace each node by an equal earlier one in scope. Random operators are never equal."""
    nodes = list(ir.walk(graph))
    last = next(line.text for line in reversed(lines) if "return" in line.text)
    returned = set(_VALUE.findall(last))
    for at, first in list(_equal(nodes, lines, returned)):
        ir.replace(nodes[at], ir.outputs(nodes[first]))


def _equal(
    nodes: list[Node], lines: list[_Line], returned: set[str]
) -> Iterator[tuple[int, int]]:
    """The positions of a node and of its earlier equal, in program order."""
    renamed: dict[str, str] = {}
    seen: dict[str, tuple[int, str]] = {}
    scopes: list[tuple[int, list[str]]] = [(0, [])]
    position = -1
    for line in lines:
        position += bool(line.kind)
        _leave(line.text, scopes, seen)
        if not line.key:
            continue
        key = _key(line, renamed)
        first, first_outputs = seen.setdefault(key, (position, line.outputs))
        if first == position:
            scopes[-1][1].append(key)
        elif not nodes[position].isNondeterministic():
            pairs = list(
                zip(
                    _VALUE.findall(line.outputs),
                    _VALUE.findall(first_outputs),
                    strict=True,
                )
            )
            if not any(returned.issuperset(pair) for pair in pairs):
                renamed.update(pairs)
                yield position, first


def _key(line: _Line, renamed: dict[str, str]) -> str:
    """The line's key after its operands were renamed, with the types of the results of a prim."""
    key = line.key
    if renamed:
        key = _VALUE.sub(lambda name: renamed.get(name[0], name[0]), key)
    if line.kind.startswith("prim::"):
        key += _VALUE.sub("", line.outputs)  # two empty lists of different types
    return key


def _leave(
    line: str, scopes: list[tuple[int, list[str]]], seen: dict[str, Any]
) -> None:
    """Drop the lines of blocks that end before this line; enter the block that begins with it."""
    body = line.lstrip()
    indent = len(line) - len(body)
    while scopes[-1][0] > indent:
        for key in scopes.pop()[1]:
            del seen[key]
    if body.startswith("block"):
        scopes.append((indent + 2, []))
