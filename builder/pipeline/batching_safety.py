"""Whether requests that Triton joins into one batch could change each other's answers.

They do by a decision on data, or by a threshold that is taken over the whole batch.

Goldens show most models whose rows depend on each other. A branch or loop on data need not show:
one batch decides once for all its rows, and the recorded rows may by chance have decided alike. Nor
do packed sequences: the recorded rows may stand in the order of their lengths, the longest first,
which is the one that is asked alone too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from builder.lowering import ir

READS_DATA = frozenset(
    f"aten::{name}"
    for name in """
        Bool Int Float item is_nonzero equal allclose _local_scalar_dense ScalarImplicit IntImplicit
        FloatImplicit tolist
    """.split()
)
"""Operators that make a number of a tensor's data."""

BATCH = "the whole batch, so that requests joined to one could change each other's answers"


def decision_on_data(block: Any) -> str | None:
    """What decides once for a whole batch: a branch, or a loop's length, that a tensor's data
    decide; None for none.
    """
    for node in ir.walk(block):
        if (
            node.kind() == "aten::_pack_padded_sequence"
            and node.inputsAt(1).node().kind() != "aten::sort"
        ):
            return (
                "packed rows must stand in the order of their lengths, which those of joined"
                " requests do not"
            )
        if node.kind() == "aten::_pad_packed_sequence" and _is_longest(node.inputsAt(4)):
            return f"the longest row decides how long the output is, for {BATCH}"
        if node.kind() == "prim::If" and _of_data(node.inputsAt(0)):
            return f"a branch on data decides once for {BATCH}"
        if node.kind() == "prim::Loop":
            (body,) = node.blocks()
            if _of_data(next(iter(body.outputs()))) or any(
                _of_data(node.inputsAt(i)) for i in (0, 1)
            ):
                return f"a loop on data goes on as one for {BATCH}"
    return None


def _is_longest(length: Any) -> bool:
    """Whether it is the number of the steps that are packed: pad_packed_sequence without
    total_length.
    """
    node = length.node()
    return bool(
        node.kind() == "aten::size"
        and node.inputsAt(0).node().kind() == "aten::_pack_padded_sequence"
    )


def _of_data(value: Any) -> bool:
    """Whether a number comes from a tensor's data."""
    stack, seen = [value], set()
    while stack:
        current = stack.pop()
        if current.debugName() in seen or str(current.type()) == "Tensor":
            continue
        seen.add(current.debugName())
        node = current.node()
        if node.kind() in READS_DATA and any(str(v.type()) == "Tensor" for v in node.inputs()):
            return True
        stack += node.inputs()
        stack += [v for inner in ir.blocks_of(node) for v in inner.outputs()]
    return False


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
"""Operators that often give the same for numbers that differ."""


def one_for_all(graph: Any, numbers: Collection[str] = ()) -> str | None:
    """What compares with a number of the whole batch, in words; None for nothing. `numbers` are
    those of the graph's inputs that are such numbers: another piece made them.
    """
    of_batch = set(numbers)
    for node in ir.walk(graph):
        made = {value.debugName() for value in node.outputs() if _holds_tensors(value)}
        if any(value.debugName() in of_batch for value in node.inputs()) or _reduces_all(node):
            if made and node.kind() in DECIDES:
                return f"{node.kind()} decides by a number of {BATCH}"
            of_batch |= made
    return None


def _holds_tensors(value: Any) -> bool:
    """Not a number or a size, which the shapes tell."""
    return "Tensor" in str(value.type().annotation_str)


def _reduces_all(node: Any) -> bool:
    """Whether it makes one number of a whole tensor."""
    schema = ir.schema(node) if node.kind() in REDUCTIONS else None
    names = [argument.name for argument in schema.arguments] if schema is not None else ["other"]
    if "other" in names or not _holds_tensors(node.inputsAt(0)):
        return False
    given = node.inputsAt(names.index("dim")) if "dim" in names else None
    return given is None or ir.is_none(given) or ir.int_list(given) == []
