"""The ordered list of passes, and the loop that runs, verifies and records them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from builder.errors import LoweringError
from builder.lowering import ir
from builder.lowering.passes import Context, Pass, torch_passes
from builder.lowering.passes.exceptions import eliminate_exceptions
from builder.lowering.passes.functionalise import functionalise
from builder.lowering.passes.interface import flatten_inputs, flatten_outputs
from builder.lowering.trace import PassRecord
from builder.lowering.verifier import interface, verify

PIPELINE: tuple[Pass, ...] = (
    flatten_inputs,  # first: everything after may rely on tensors (and constants) only
    torch_passes.inline,
    torch_passes.propagate_constants,
    eliminate_exceptions,
    torch_passes.peephole_lists,
    functionalise,
    torch_passes.propagate_constants,
    flatten_outputs,
    torch_passes.lower_tuples,  # needs plain outputs
    torch_passes.eliminate_common_subexpressions,
    torch_passes.peephole,
    torch_passes.pool_constants,
    torch_passes.eliminate_dead_code,
)


def run_passes(
    graph: Any,
    context: Context,
    passes: Sequence[Pass] = PIPELINE,
    *,
    stop_after: str | None = None,
    keep_text: bool = False,
) -> tuple[PassRecord, ...]:
    """Run `passes` over `graph` in place, verify after each, and give the record of each.

    `stop_after` names the last pass to run (its last occurrence in the list); `keep_text` keeps the graph's text
    around each pass.
    """
    records = []
    for step in _until(passes, stop_after):
        records.append(_run_one(graph, context, step, keep_text))
    return tuple(records)


def _until(passes: Sequence[Pass], stop_after: str | None) -> Sequence[Pass]:
    if stop_after is None:
        return passes
    names = [step.name for step in passes]
    if stop_after not in names:
        raise LoweringError(f"there is no pass {stop_after!r}", fix=f"one of {', '.join(dict.fromkeys(names))}")
    return passes[: len(names) - names[::-1].index(stop_after)]


def _run_one(graph: Any, context: Context, step: Pass, keep_text: bool) -> PassRecord:
    types, count = interface(graph), ir.count_nodes(graph)
    text = str(graph) if keep_text else ""
    start = time.perf_counter()
    step(graph, context)
    seconds = time.perf_counter() - start
    verify(graph, step, types)
    return PassRecord(step.name, count, ir.count_nodes(graph), seconds, text, str(graph) if keep_text else "")
