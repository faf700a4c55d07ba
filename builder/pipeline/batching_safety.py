"""Whether requests in one batch could change each other's outputs.

This happens with a data-dependent branch, or a threshold over the whole batch. Goldens detect most
models whose rows depend on each other, but not all: a data-dependent branch or loop decides once
for all rows of a batch, and the recorded rows may have made the same decision. Packed sequences may
also be missed, if the recorded rows are in order of decreasing length.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from builder import lowering

BATCH = (
    "the whole batch, so that requests in one batch could change each other's outputs"
)
_DYNAMIC = re.compile(r"quantized::\w+_dynamic")
"""Operators that quantize their input with a scale of its greatest value."""


def decision_on_data(block: Any) -> str | None:
    """The reason if a data-dependent branch or loop, or the scale of a quantized tensor, is one for
    a whole batch, or None.
    """
    for node in lowering.ir.walk(block):
        if (
            node.kind() == "aten::_pack_padded_sequence"
            and node.inputsAt(1).node().kind() != "aten::sort"
        ):
            return "packed rows must be sorted by length, and rows of different requests are not"
        unpacks = node.kind() == "aten::_pad_packed_sequence"
        if unpacks and _is_longest(node.inputsAt(4)):
            return f"the longest row determines the length of the output, for {BATCH}"
        if _DYNAMIC.fullmatch(node.kind()):
            return f"{node.kind()} quantizes with one scale for {BATCH}"
        if node.kind() == "prim::If" and lowering.ir.is_of_data(node.inputsAt(0)):
            return f"a branch on data decides once for {BATCH}"
        if node.kind() == "prim::Loop":
            (body,) = node.blocks()
            continues = next(iter(body.outputs()))
            most, begins = node.inputsAt(0), node.inputsAt(1)
            if any(map(lowering.ir.is_of_data, (continues, most, begins))):
                return f"a loop on data has one trip count for {BATCH}"
    return None


def _is_longest(length: Any) -> bool:
    """Whether it is the number of packed steps, from pad_packed_sequence without total_length."""
    node = length.node()
    return bool(
        node.kind() == "aten::size"
        and node.inputsAt(0).node().kind() == "aten::_pack_padded_sequence"
    )


REDUCTIONS = frozenset(
    f"aten::{name}"
    for name in (
        "sum nansum mean nanmean max min amax amin median nanmedian std var prod norm".split()
        + "any all argmax argmin".split()
    )
)
DECIDES = frozenset(
    f"aten::{name}"
    for name in """
        gt ge lt le eq ne any all argmax argmin topk sort argsort floor ceil round trunc sign
    """.split()
)
"""Operators that often return equal results for different numbers."""


def one_for_all(graph: Any, numbers: Collection[str] = ()) -> str | None:
    """The reason if a node compares with a number from the whole batch, or None. `numbers` are
    graph inputs that are such numbers, from another segment.
    """
    of_batch = set(numbers)
    for node in lowering.ir.walk(graph):
        tensors = {
            value.debugName() for value in node.outputs() if _holds_tensors(value)
        }
        reads_number = any(value.debugName() in of_batch for value in node.inputs())
        if not (reads_number or _reduces_all(node)):
            continue
        if tensors and node.kind() in DECIDES:
            return f"{node.kind()} depends on a number from {BATCH}"
        of_batch |= tensors
    return None


def _holds_tensors(value: Any) -> bool:
    """Whether the value is a tensor, and not a number or size that follows from shapes."""
    return "Tensor" in str(value.type().annotation_str)


def _reduces_all(node: Any) -> bool:
    """Whether the node reduces a whole tensor to one number."""
    schema = None
    if node.kind() in REDUCTIONS:
        schema = lowering.ir.schema(node)
    names = ["other"]
    if schema is not None:
        names = [argument.name for argument in schema.arguments]
    if "other" in names or not _holds_tensors(node.inputsAt(0)):
        return False
    dim = None
    if "dim" in names:
        dim = node.inputsAt(names.index("dim"))
    return dim is None or lowering.ir.is_none(dim) or lowering.ir.int_list(dim) == []
