"""Equal constants and equal operators, once each.

torch's own passes put every tensor constant into one bucket of a hash table and compare each with each: quadratic in
the number of weights. Ours compare lines of the graph's text, which torch writes many times faster than Python walks a
graph, and look at nodes only where two lines are equal.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from typing import Any

import torch

from builder.lowering import ir
from builder.lowering.folding import may_write
from builder.lowering.passes import Context, lowering_pass

_CONSTANT = re.compile(r"^ *%\S+ : (.*?) = prim::Constant(.*?)\(\)(?:, scope: [^#]*)?(?: # .*)?$")
_VALUE = re.compile(r"%[\w.]+")
# Lists of numbers and strings are shown in full; tensors, tuples and objects are not.
_SHOWN = frozenset(
    ["int", "float", "bool", "str", "Device", "NoneType", "complex", "int[]", "float[]", "bool[]", "str[]"]
)


@lowering_pass("pool-constants")
def pool_constants(graph: Any, context: Context) -> None:
    """Keep the first of equal constants; at the top of the graph if it stands in a branch or a loop. Tensors are equal
    when all of their bytes are.
    """
    top = next(iter(graph.nodes()), None)
    nodes = ir.nodes_of(graph, "prim::Constant")
    lines = (line for line in str(graph).splitlines() if " = prim::Constant" in line)
    kept: dict[Any, Any] = {}
    tensors = _Tensors()
    for node, (kind, value) in zip(nodes, map(_shown, lines), strict=True):
        key = (kind, value) if kind in _SHOWN else tensors.key(node.output().toIValue(), node)
        first = kept.setdefault(key, node)
        if first is not node:
            ir.replace(node, [first.output()])
        elif node.owningBlock().owningNode() is not None:
            node.moveBefore(top)


def _shown(line: str) -> tuple[str, str]:
    """The type and the value of a constant, as torch shows them."""
    match = _CONSTANT.match(line)
    assert match is not None, line
    return match[1], match[2]


class _Tensors:
    """The tensors met so far, in buckets by what is cheap to see: shape, dtype, and the bytes at both ends."""

    def __init__(self) -> None:
        self._buckets: dict[Any, list[torch.Tensor]] = {}

    def key(self, value: Any, node: Any) -> Any:
        """What is the same for equal tensors and for nothing else; a value that is no plain tensor equals none."""
        if not isinstance(value, torch.Tensor) or not _plain(value):
            return node
        bucket = (value.dtype, value.shape, _ends(value))
        known = self._buckets.setdefault(bucket, [])
        at = next((i for i, other in enumerate(known) if _same_bytes(value, other)), len(known))
        if at == len(known):
            known.append(value)
        return (*bucket, at)


def _plain(tensor: torch.Tensor) -> bool:
    in_memory = tensor.layout is torch.strided and tensor.device == ir.CPU and not tensor.is_quantized
    return in_memory and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _ends(tensor: torch.Tensor, most: int = 64) -> bytes:
    count, start = tensor.numel() * tensor.element_size(), tensor.data_ptr()
    size = min(count, most)
    return ctypes.string_at(start, size) + ctypes.string_at(start + count - size, size) if count else b""


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.data_ptr() == other.data_ptr() or not one.numel():
        return True
    return torch.equal(*(tensor.detach().reshape(-1).view(torch.uint8) for tensor in (one, other)))


_OPERATOR = re.compile(r"^ *(%.+?) = ((?:aten|prim)::\w+)((?:\[[^\]]*\])?\([^)]*\))")
_NEVER = frozenset(f"prim::{name}" for name in ("Constant", "If", "Loop", "Uninitialized", "PythonOp", "GetAttr"))
_BLOCK = re.compile(r"^ *block\d+\(")


@lowering_pass("eliminate-common-subexpressions")
def eliminate_common_subexpressions(graph: Any, context: Context) -> None:
    """Compute the same operator on the same values once, but for what is random; two outputs of the graph stay two
    values. A graph that still writes in place is left to torch.
    """
    lines = [line for line in str(graph).splitlines() if " = " in line or line.lstrip().startswith(("block", "return"))]
    found = [match for line in lines if (match := _OPERATOR.match(line)) and match[2] not in _NEVER]
    if any(may_write(match[2]) for match in found):
        ir.C._jit_pass_cse(graph)
    elif len({match[2] + match[3] for match in found}) < len(found):
        _merge(graph, lines)


def _merge(graph: Any, lines: list[str]) -> None:
    """Replace each node by an equal one before it that it can see."""
    nodes = list(ir.walk(graph))
    returned = set(_VALUE.findall(lines[-1]))
    for at, first in list(_equal(nodes, lines, returned)):
        ir.replace(nodes[at], ir.outputs(nodes[first]))


def _equal(nodes: list[Any], lines: list[str], returned: set[str]) -> Iterator[tuple[int, int]]:
    """The places of a node and of the equal one before it, in program order."""
    renamed: dict[str, str] = {}
    seen: dict[str, tuple[int, list[str]]] = {}
    scopes: list[tuple[int, list[str]]] = [(0, [])]
    place = -1
    for line in lines:
        place += " = " in line
        _leave(line, scopes, seen)
        match = _OPERATOR.match(line)
        if match is None or match[2] in _NEVER or nodes[place].isNondeterministic():
            continue
        made = _VALUE.findall(match[1])
        arguments = _VALUE.sub(lambda name: renamed.get(name[0], name[0]), match[3]) if renamed else match[3]
        key = _VALUE.sub("", match[1]) + match[2] + arguments
        first, names = seen.setdefault(key, (place, made))
        if first == place:
            scopes[-1][1].append(key)
        elif not (returned.intersection(made) and returned.intersection(names)):
            renamed.update(zip(made, names, strict=True))
            yield place, first


def _leave(line: str, scopes: list[tuple[int, list[str]]], seen: dict[str, Any]) -> None:
    """Forget what was made in blocks that end before this line; enter the one that begins with it."""
    indent = len(line) - len(line.lstrip())
    while scopes[-1][0] > indent:
        for key in scopes.pop()[1]:
            del seen[key]
    if _BLOCK.match(line):
        scopes.append((indent + 2, []))
