"""Where a difference begins: the first node of the lowered graph whose value in the network is
another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from builder import reference
from builder.manifest import Tolerance
from builder.parity.arrays import to_numpy
from builder.parity.comparison import compare


def first_difference(
    conversion: Any,
    inputs: Sequence[torch.Tensor],
    tolerance: Tolerance = Tolerance(),  # noqa: B008
) -> str:
    """`%name aten::softmax (model.py:12: ...): what differs` of the first node that differs, in
    program order.

    The lowered graph is executed by torch and the network by the reference, on the same inputs, and
    the tensors that carry one name are compared with the dtype's default tolerance. Values that the
    network does not hold under the graph's name (folded, or several layers' work) are passed over.
    """
    truth = conversion.lowered.values(*inputs)
    answers = reference.inspect(conversion, inputs, {f"%{name}" for name in truth})
    for name, wanted in truth.items():
        answer = answers.get(f"%{name}")
        if answer is None:
            continue
        answer = answer.to(wanted.dtype) if _alike(answer.dtype, wanted.dtype) else answer
        comparison = compare(
            {name: to_numpy(answer)},
            {name: to_numpy(wanted)},
            tolerance,
            precision=conversion.precision,
        )
        if not comparison.passed:
            return f"{_place(conversion, name)}: {comparison.problems[0]}"
    return "the outputs themselves: every named value before them agrees"


def _alike(one: torch.dtype, other: torch.dtype) -> bool:
    """Whether the one may stand for the other within a network: half for float32, int32 for
    int64.
    """
    return torch.bool not in (one, other) and one.is_floating_point == other.is_floating_point


def _place(conversion: Any, name: str) -> str:
    from builder.lowering import source_location

    node = next(
        n for n in conversion.lowered.graph.nodes() for v in n.outputs() if v.debugName() == name
    )
    return f"%{name} = {node.kind()} at {source_location(node)}"
