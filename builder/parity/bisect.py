"""Find the first difference between the values of the lowered graph and those of its network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from builder import lowering, reference
from builder.manifest import Tolerance
from builder.parity.arrays import to_numpy
from builder.parity.comparison import OutputComparison, compare

if TYPE_CHECKING:
    from builder.conversion import Conversion

DEFAULT = Tolerance()


Tensors = dict[str, torch.Tensor]


def graph_and_network(
    conversion: Conversion, inputs: Sequence[torch.Tensor], *, separately: bool = False
) -> tuple[Tensors, Tensors]:
    """The values of the lowered graph from torch, in program order, and the network's values for
    them from the reference, on the same inputs.

    The network has no constants, sizes, and values inside loops and branches. If two values share
    one tensor (a convolution and its folded normalization), it belongs to the later one. Values
    that need a layer without a reference are left out. With `separately`, the network computes
    each value from torch's values, so that no difference reaches another value.
    """
    truth = conversion.lowered.values(*inputs)
    tensors = {
        name: conversion.tensors[name].name
        for name in truth
        if name in conversion.tensors
    }
    last = {tensor: name for name, tensor in tensors.items()}
    values = {
        str(spec.name): value
        for spec, value in zip(conversion.inputs, inputs, strict=True)
    }
    replaced = {tensor: truth[name] for tensor, name in last.items() if separately}
    values |= reference.inspect(
        conversion, inputs, set(last), partial=True, replaced=replaced
    )
    known = ((name, tensor) for name, tensor in tensors.items() if last[tensor] == name)
    return truth, {name: values[tensor] for name, tensor in known if tensor in values}


def compare_value(
    name: str,
    output: torch.Tensor,
    expected: torch.Tensor,
    precision: str,
    tolerance: Tolerance = DEFAULT,
) -> OutputComparison:
    """Compare a value within a network, in which half may replace float32 and int32 may replace
    int64.
    """
    if _may_replace(output.dtype, expected.dtype):
        output = output.to(expected.dtype)
    arrays = {name: to_numpy(output)}, {name: to_numpy(expected)}
    return compare(*arrays, tolerance, precision=precision).outputs[0]


def first_difference(conversion: Conversion, inputs: Sequence[torch.Tensor]) -> str:
    """`%name = aten::softmax at model.py:12: ...` of the first value that differs, in program
    order.
    """
    truth, outputs = graph_and_network(conversion, inputs)
    for name, output in outputs.items():
        comparison = compare_value(
            name, output, truth[name], conversion.precision, DEFAULT
        )
        if not comparison.passed:
            return (
                f"{_location(conversion, name)}: output {name!r}: {comparison.problem}"
            )
    return "the outputs: all values before them are equal"


def agrees_separately(conversion: Conversion, inputs: Sequence[torch.Tensor]) -> bool:
    """Whether the network computes every value as torch does from the same values. A difference of
    its outputs is then the sum of rounding errors.
    """
    truth, values = graph_and_network(conversion, inputs, separately=True)
    return all(
        compare_value(name, value, truth[name], conversion.precision).passed
        for name, value in values.items()
    )


def _may_replace(left: torch.dtype, right: torch.dtype) -> bool:
    """Whether one dtype may replace the other within a network: half for float32, int32 for
    int64.
    """
    return (
        torch.bool not in (left, right)
        and left.is_floating_point == right.is_floating_point
    )


def _location(conversion: Conversion, name: str) -> str:
    node = next(
        candidate
        for candidate in conversion.lowered.graph.nodes()
        for value in candidate.outputs()
        if value.debugName() == name
    )
    return f"%{name} = {node.kind()} at {lowering.source_location(node)}"
