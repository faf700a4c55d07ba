"""Find inputs of a model that are likely state which its outputs return: by recurrent operators,
else by name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from builder.lowering import ir

if TYPE_CHECKING:
    from builder.graph_types import Value
    from builder.lowering import LoweredGraph


RECURRENT = {"aten::lstm": 2, "aten::gru": 1, "aten::rnn_tanh": 1, "aten::rnn_relu": 1}
"""The number of states of each operator: that many values of hx, and that many outputs after the
first.
"""
CELLS = {f"{kind}_cell": states for kind, states in RECURRENT.items()}
"""The number of states of each operator of one step, all of which it returns."""
PACK = "aten::_pack_padded_sequence"
_AXES_ONLY = {
    f"aten::{name}"
    for name in """
        unsqueeze squeeze permute transpose contiguous clone to expand view reshape index_select
    """.split()
}
_AFFIX = re.compile(r"^(?:next|new|out|updated)_|_(?:next|new|out|in|n|0|prev)$")
_WEIGHTS, _LAYERS, _BIDIRECTIONAL, _BATCH_FIRST = 2, 4, 7, 8
"""Argument indices of params, num_layers, bidirectional and batch_first of a recurrent operator.
For a packed sequence each index is one higher, and there is no batch_first.
"""


def pairs(lowered: LoweredGraph) -> list[tuple[str, str]]:
    """The (input, output) pair of each state that is recognized, in the order of the inputs."""
    outputs_by_input = dict(
        [*_by_name(lowered.inputs, lowered.results), *_by_operator(lowered)]
    )
    # an output belongs to one input only, the first one
    once = {output: name for name, output in reversed(outputs_by_input.items())}
    return sorted(
        ((name, output) for output, name in once.items()),
        key=lambda pair: lowered.inputs.index(pair[0]),
    )


def shapes(lowered: Any) -> dict[str, tuple[int | str, ...]]:
    """The shape of each input that a recurrent operator reads: [layers, batch, size] of a state, or
    [batch, size] of that of a cell.
    """
    found: dict[str, tuple[int | str, ...]] = {}
    for node in ir.nodes_of(lowered.graph, *RECURRENT):
        found.update(_shapes(lowered, node))
    for node in ir.nodes_of(lowered.graph, *CELLS):
        found.update(_shapes_of_cell(lowered, node))
    return found


def lengths(lowered: Any) -> set[str]:
    """The inputs that hold the row lengths of a packed sequence, sorted or not."""
    packed = lowered.graph.findAllNodes(PACK)
    sizes = [_unsorted(node.inputsAt(1)) for node in packed]
    return {name for value in sizes for name in _inputs_of(lowered, value)}


def _by_name(
    inputs: Sequence[str], outputs: Sequence[str]
) -> Iterator[tuple[str, str]]:
    stems = {_AFFIX.sub("", name): name for name in outputs}
    for name in inputs:
        stem = _AFFIX.sub("", name)
        if stem in stems and stems[stem] != name:
            yield name, stems[stem]


def _unsorted(value: Any) -> Any:
    """The value that is sorted; the value itself if it is not the result of a sort."""
    node = value.node()
    if node.kind() == "aten::sort":
        return node.inputsAt(0)
    return value


def _by_operator(lowered: LoweredGraph) -> Iterator[tuple[str, str]]:
    outputs = zip(lowered.outputs, lowered.graph.outputs(), strict=True)
    origins = {name: _origins(value) for name, value in outputs}
    for node in ir.nodes_of(lowered.graph, *RECURRENT, *CELLS):
        first = node.kind() in RECURRENT  # the first output is the sequence
        for number, initial in enumerate(_states(node)):
            state = node.outputsAt(number + first).debugName()
            matching = [output for output, names in origins.items() if state in names]
            yield from itertools.product(_inputs_of(lowered, initial), matching)


def _shapes(lowered: Any, node: Any) -> Iterator[tuple[str, tuple[int | str, ...]]]:
    later, (sequence, order) = _packed(node), _sequence(node)
    weights = _tensors(node.inputsAt(_WEIGHTS + later))
    flags = node.inputsAt(_LAYERS + later), node.inputsAt(_BIDIRECTIONAL + later), order
    layers, two_directions, batch_first = (value.toIValue() for value in flags)
    if len(weights) < 2 or not isinstance(layers, int):
        return
    axes = ("batch", "length") if batch_first else ("length", "batch")
    for name in _inputs_of(lowered, sequence):
        yield name, (*axes, int(weights[0].shape[1]))
    for initial in _states(node):
        for name in _inputs_of(lowered, initial):
            yield (
                name,
                (
                    layers * (2 if two_directions else 1),
                    "batch",
                    int(weights[1].shape[1]),
                ),
            )


def _shapes_of_cell(
    lowered: Any, node: Any
) -> Iterator[tuple[str, tuple[int | str, ...]]]:
    values = [(node.inputsAt(0), node.inputsAt(2))]
    values += [(initial, node.inputsAt(3)) for initial in _states(node)]
    for value, weight in values:
        for tensor in _tensors(weight):
            for name in _inputs_of(lowered, value):
                yield name, ("batch", int(tensor.shape[1]))


def _packed(node: Any) -> bool:
    return str(node.schema()).partition("(")[0].endswith(".data")


def _sequence(node: Any) -> tuple[Any, Any]:
    """The sequence that the operator reads, and the flag `batch_first`. For a packed sequence,
    those of the call that packs it.
    """
    packer = node.inputsAt(0).node()
    if _packed(node) and packer.kind() == PACK:
        return packer.inputsAt(0), packer.inputsAt(2)
    return node.inputsAt(0), node.inputsAt(_BATCH_FIRST)


def _states(node: Any) -> list[Any]:
    """The values of hx."""
    initial = node.inputsAt(1 + _packed(node))
    several = initial.node().kind() == "prim::ListConstruct"
    if several:
        return list(initial.node().inputs())[: (RECURRENT | CELLS)[node.kind()]]
    return [initial]


def _tensors(value: Any) -> list[Any]:
    if value.node().kind() == "prim::ListConstruct":
        return [
            element.toIValue()
            for element in value.node().inputs()
            if element.node().kind() == "prim::Constant"
        ]
    if value.node().kind() == "prim::Constant":
        constant = value.toIValue()
        return (
            [constant] if isinstance(constant, torch.Tensor) else list(constant or ())
        )
    return []


def _inputs_of(lowered: Any, value: Any) -> list[str]:
    origins = _origins(value)
    inputs = zip(lowered.inputs, lowered.graph.inputs(), strict=True)
    return [name for name, graph_input in inputs if graph_input.debugName() in origins]


def _origins(value: Value) -> set[str]:
    """The values that this one equals up to its axes, through both branches of each `prim::If`."""
    node = value.node()
    if node.kind() == "prim::If":
        offset = value.offset()
        sides = [list(block.outputs())[offset] for block in node.blocks()]
        return {name for side in sides for name in _origins(side)}
    if node.kind() in _AXES_ONLY:
        return _origins(node.inputsAt(0))
    return {value.debugName()}
