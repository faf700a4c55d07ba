"""Whether requests that Triton joins to one batch could change each other's answers by a threshold
for all of them.

Goldens show rows that depend on each other where numbers do. A comparison with the whole batch's
mean need not show: the recorded rows may by chance stand on the same side of it, alone and
together.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from builder.lowering import ir
from builder.repository.mixing import BATCH

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
