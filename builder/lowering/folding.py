"""Constant propagation that does not fold quantization: an int8 engine is built from weights and
scales, not from rounded weights.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.scoping import Line

# Quantization operators. torch would fold them on every weight, because all of their inputs are
# constants.
QUANTIZERS = tuple(
    f"aten::{name}"
    for name in (
        "fake_quantize_per_tensor_affine",
        "fake_quantize_per_tensor_affine_cachemask",
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
        "fake_quantize_per_channel_affine",
        "fake_quantize_per_channel_affine_cachemask",
        "_fake_quantize_learnable_per_tensor_affine",
        "_fake_quantize_learnable_per_channel_affine",
        "fused_moving_avg_obs_fake_quant",
        "_fused_moving_avg_obs_fq_helper",
        "_fused_moving_avg_obs_fq_helper_functional",
        "quantize_per_tensor",
        "quantize_per_channel",
        "quantize_per_tensor_dynamic",
        "dequantize",
    )
)


def propagate_constants(graph: Graph, kinds: Collection[str] | None = None) -> None:
    """Compute nodes that depend only on constants, except quantization and nodes that read its
    results.

    A write to a constant is kept, so that functionalize refuses it: it changes the module's state,
    but torch removes it if that constant is not read. `kinds` are the kinds of the graph's nodes,
    if known.
    """
    if kinds is None:
        kinds = kinds_of(graph)
    with _unknown_to_torch(graph, kinds), _state_in_sight(graph, kinds):
        ir.C._jit_pass_constant_propagation(graph)


def foldable(lines: Iterable[Line]) -> bool:
    """Whether constants could be propagated: the graph has a branch, a loop, or a node that reads
    only constants.
    """
    constants: set[str] = set()
    for line in lines:
        if line.kind == "prim::Constant":
            constants.update(line.outputs)
            continue
        reads_constants = constants.issuperset(line.inputs)
        if line.kind in ("prim::If", "prim::Loop") or (line.kind and reads_constants):
            return True
    return False


def take_static_branches(graph: Graph) -> None:
    """Replace each If with a constant condition by the branch that is taken."""
    for node in ir.nodes_of(graph, "prim::If"):
        chosen = ir.constant(node.inputsAt(0))
        if isinstance(chosen, bool):
            ir.splice(node, list(node.blocks())[0 if chosen else 1])


def unread(lines: Sequence[Line]) -> bool:
    """Whether the graph has a node or value without users, or a branch or loop, which may have
    unused outputs.
    """
    read: set[str] = set()
    for line in lines:
        read.update(line.inputs)
    for line in lines:
        if line.kind in ("prim::If", "prim::Loop"):
            return True
        is_read = line.outputs and read.issuperset(line.outputs)
        if line.kind and not is_read:
            return True
    return False


def eliminate_dead_code(graph: Graph) -> None:
    """Remove nodes without users, except writes to constants."""
    with _state_in_sight(graph, kinds_of(graph)):
        ir.C._jit_pass_dce(graph)


def kinds_of(graph: Graph) -> frozenset[str]:
    """The kinds of all nodes, read from the graph's text, because torch prints a graph faster than
    Python walks it.
    """
    return frozenset(_KIND.findall(str(graph)))


_KIND = re.compile(r"= (\w+::\w+)")


@contextmanager
def _state_in_sight(graph: Graph, kinds: Collection[str]) -> Iterator[None]:
    """Inside the block, every constant that is written is an output of the graph."""
    state = _written_constants(graph, kinds)
    count = sum(1 for _ in graph.outputs())
    for value in state:
        graph.registerOutput(value)
    yield
    for _ in state:
        graph.eraseOutput(count)


def _written_constants(graph: Graph, kinds: Collection[str]) -> list[Value]:
    """The constants that nodes write through their first inputs; all constants if that cannot be
    determined.
    """
    if not any(map(may_write, kinds)):
        return []
    written: dict[int, Any] = {}
    origins: dict[int, Any] = {}
    for node in ir.walk(graph):
        if may_write(node.kind()) and node.inputsSize():
            origin = _origin(node.inputsAt(0), origins)
            if _joined(origin.node()):
                return [
                    constant.output()
                    for constant in graph.nodes()
                    if constant.kind() == "prim::Constant"
                    and _is_tensor(constant.output())
                ]
            if ir.is_constant(origin) and _is_tensor(origin):
                written[origin.unique()] = origin
    return [
        value
        for value in written.values()
        if value.node().owningBlock().owningNode() is None
    ]


_JOINS = ("prim::If", "prim::Loop", "prim::Param")


def _joined(node: Node) -> bool:
    """Whether a node returns a value that several other nodes may have created. The inputs of the
    graph are created outside.
    """
    return node.kind() in _JOINS and not (
        node.kind() == "prim::Param" and node.owningBlock().owningNode() is None
    )


def _origin(value: Value, origins: dict[int, Value]) -> Value:
    """The value at the start of a chain of first inputs. `origins` caches the results, because
    chains share nodes.
    """
    chain = []
    while (
        value.unique() not in origins
        and value.node().kind() not in _JOINS
        and value.node().inputsSize()
    ):
        chain.append(value.unique())
        value = value.node().inputsAt(0)
    origin = origins.get(value.unique(), value)
    origins.update(dict.fromkeys(chain, origin))
    return origin


def _is_tensor(value: Value) -> bool:
    return bool(value.type().kind() == "TensorType")


_AUGMENTED = frozenset(
    f"aten::__i{name}__" for name in ("and", "or", "xor", "lshift", "rshift")
)


def may_write(kind: str) -> bool:
    """Whether an operator writes its first input in place, by its name."""
    if kind in _AUGMENTED:
        return True
    if kind.startswith("aten::__"):
        return False
    return kind.startswith("aten::") and kind.endswith("_")


@contextmanager
def _unknown_to_torch(graph: Graph, kinds: Collection[str]) -> Iterator[None]:
    """Inside the block, each quantizer reads one of its integer arguments (a bound, a dtype) from
    an input of the graph, so that torch cannot fold it. Its other inputs can still be folded.
    """
    first = len(list(graph.inputs()))
    numbers = []
    for node in ir.nodes_of(graph, *(kind for kind in QUANTIZERS if kind in kinds)):
        at = _whole_number(node)
        if at is not None:
            numbers.append(node.inputsAt(at).toIValue())
            stand_in = graph.addInput()
            stand_in.setType(ir.INT)
            node.replaceInput(at, stand_in)
    yield
    for stand_in, number in zip(list(graph.inputs())[first:], numbers, strict=True):
        # A quantizer in a branch that is not taken is gone: no uses.
        for use in stand_in.uses():
            constant = ir.insert_constant(graph, number, use.user)
            use.user.replaceInput(use.offset, constant)
    for _ in numbers:
        graph.eraseInput(first)


def _whole_number(node: Node) -> int | None:
    """The position of an argument that is a constant int."""
    for position in range(node.inputsSize()):
        if isinstance(ir.constant(node.inputsAt(position)), int):
            return position
    return None
