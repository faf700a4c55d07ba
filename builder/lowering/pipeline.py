"""The ordered list of passes, and the loop that runs, verifies and records them."""

from __future__ import annotations

import difflib
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from builder.errors import LoweringError, TrtBuildError, UsageError
from builder.graph_types import Graph
from builder.lowering.graph import canonical
from builder.lowering.paranoid import Paranoid
from builder.lowering.passes import Context, Pass, Rewrite, torch_passes
from builder.lowering.passes.attention import (
    fold_query_scale,
    scale_queries,
    scale_scores,
)
from builder.lowering.passes.branches import select_by_size
from builder.lowering.passes.complex import split_complex
from builder.lowering.passes.convolution import unify_convolutions
from builder.lowering.passes.decompose import (
    tile_to_repeat,
    unpack_addmm,
    unpack_aliases,
    unpack_attention,
    unpack_encoder_layer,
    unpack_floor_divide,
    unpack_multi_head,
    unpack_rsqrt,
    unpack_scatters,
    unpack_silu,
    unpack_type_as,
    view_to_reshape,
)
from builder.lowering.passes.dtypes import fold_known_facts, remove_casts
from builder.lowering.passes.embeddings import renormalize_embeddings
from builder.lowering.passes.environment import (
    fold_string_lengths,
    refuse_nested_tensors,
    resolve_environment,
)
from builder.lowering.passes.fallback import mark_fallback
from builder.lowering.passes.functionalize import functionalize
from builder.lowering.passes.fuse import (
    fuse_addmm_branches,
    fuse_linear,
)
from builder.lowering.passes.interface import flatten_inputs
from builder.lowering.passes.masks import masks_to_where
from builder.lowering.passes.merging import (
    eliminate_common_subexpressions,
    pool_constants,
)
from builder.lowering.passes.nones import fold_none_in_loops, remove_empty_updates
from builder.lowering.passes.optionals import split_optionals
from builder.lowering.passes.outputs import flatten_outputs
from builder.lowering.passes.pad import unpack_pad
from builder.lowering.passes.patches import patches_to_linear
from builder.lowering.passes.peephole import peephole
from builder.lowering.passes.precision import precision
from builder.lowering.passes.projections import split_projections
from builder.lowering.passes.quantization import unify_fake_quantize
from builder.lowering.passes.removals import (
    eliminate_exceptions,
    remove_clone,
    remove_contiguous,
    remove_detach,
    remove_dropout,
    remove_full_slices,
    remove_guards,
    unify_to,
)
from builder.lowering.passes.reshapes import merge_reshapes
from builder.lowering.passes.scalars import (
    fold_scalar_chains,
    fold_scalar_tensors,
    fold_sizes,
)
from builder.lowering.passes.strides import refuse_strides
from builder.lowering.passes.tokens import flatten_tokens
from builder.lowering.passes.transposes import sink_transposes
from builder.lowering.passes.unroll import resolve_static_ifs, unroll_loops
from builder.lowering.passes.widths import fold_widths
from builder.lowering.steps import LOWER_GRAPH
from builder.lowering.trace import PassRecord
from builder.lowering.verifier import Snapshot, verify

PIPELINE: tuple[Pass, ...] = (
    # Simplify the graph of the file.
    mark_fallback,  # before anything merges or replaces nodes
    flatten_inputs,  # all later passes see only tensors and constants
    torch_passes.inline,
    resolve_environment,  # folded queries make ifs static
    fold_known_facts,
    torch_passes.propagate_constants,
    eliminate_exceptions,  # after constants, which resolve the static guards
    resolve_static_ifs,
    fold_none_in_loops,  # after ifs, which choose what a loop starts with
    remove_empty_updates,
    remove_guards,
    torch_passes.peephole_lists,  # the length of a list that is built here is a trip count
    unroll_loops,
    # Replace memory by values.
    remove_dropout,  # before functionalize: dropout returns its input
    # before functionalize: an observer declares a write, and a disabled one does not write
    unify_fake_quantize,
    renormalize_embeddings,  # before functionalize: it writes a constant
    functionalize,
    fold_string_lengths,
    torch_passes.propagate_constants,  # conditions on the content of a list are static now
    resolve_static_ifs,
    unroll_loops,  # over a dictionary: its number of items is known now
    flatten_outputs,  # after functionalize: dictionaries that are filled step by step are complete
    torch_passes.lower_tuples,  # needs plain outputs
    torch_passes.propagate_constants,
    resolve_static_ifs,
    split_optionals,  # after tuples, which may hold Optionals
    torch_passes.eliminate_dead_code,
    refuse_nested_tensors,  # before decompositions, which are not valid for nested tensors
    refuse_strides,  # before contiguous is removed
    # Fewer kinds of nodes. Views first: after them contiguous and clone have no effect.
    view_to_reshape,
    remove_contiguous,
    remove_clone,
    remove_detach,
    remove_full_slices,
    unpack_encoder_layer,  # before the decompositions of its parts, such as gelu
    unpack_multi_head,
    unpack_attention,
    unpack_pad,
    unify_convolutions,
    unpack_aliases,
    unpack_silu,
    unpack_floor_divide,
    unpack_rsqrt,
    unpack_scatters,
    tile_to_repeat,
    replace(
        torch_passes.lower_tuples, touches=torch_passes.TUPLES
    ),  # decompositions with two results
    # addmm to linear before addmm is decomposed; its branches after both are linear.
    fuse_linear,
    fuse_addmm_branches,
    unpack_addmm,
    # Casts, late: all queries of dtypes are folded.
    unpack_type_as,
    unify_to,
    split_complex,  # casts to complex dtypes are one form of `to` now
    # Fourier transforms have two results
    replace(torch_passes.lower_tuples, touches=torch_passes.TUPLES),
    # again: a cast to the same dtype is visible now
    replace(eliminate_common_subexpressions, touches=("prim::dtype",)),
    fold_known_facts,
    remove_casts,
    # `y[~m] = -y[~m]` reads a mask twice
    replace(eliminate_common_subexpressions, touches=("aten::index",)),
    masks_to_where,
    # Numbers.
    fold_scalar_chains,
    fold_scalar_tensors,
    fold_sizes,
    fold_widths,
    peephole,
    torch_passes.propagate_constants,  # also the branches of decompositions
    resolve_static_ifs,
    eliminate_exceptions,
    torch_passes.peephole_lists,
    select_by_size,  # remaining ifs: their sizes and pads have one form now
    # Attention, after the sizes of its heads are numbers.
    split_projections,
    fold_widths,  # the sizes of the new layers are those of their inputs
    merge_reshapes,
    torch_passes.eliminate_dead_code,  # merged nodes have no users
    sink_transposes,  # after the layers that are now separate
    precision,  # last of the passes that change nodes: it sees the graph that conversion sees
    pool_constants,  # first: operators are equal only if their constants are merged
    eliminate_common_subexpressions,
    torch_passes.eliminate_dead_code,
)

_BEHIND_A_SCALE: tuple[Pass, ...] = (
    sink_transposes,  # the scale is then not a layer that stops transposes
    eliminate_common_subexpressions,
    torch_passes.eliminate_dead_code,
)
HALF: tuple[Pass, ...] = (
    scale_queries,
    fold_query_scale,
    *_BEHIND_A_SCALE,
    flatten_tokens,
    patches_to_linear,  # last: the passes before it know tokens by their convolution
    torch_passes.eliminate_dead_code,
)
"""Passes that conversion adds for half precision."""
FULL: tuple[Pass, ...] = (scale_scores, *_BEHIND_A_SCALE)
"""Passes that conversion adds for full precision."""
ALL: tuple[Pass, ...] = (*PIPELINE, *HALF, *FULL)
"""All passes. Some occur more than once."""


ADDED: list[tuple[Pass, str, str]] = []
"""User passes, with "before" or "after" and the name of a pass."""


def every_pass() -> tuple[Pass, ...]:
    """The passes in order: PIPELINE with the user passes."""
    steps = list(PIPELINE)
    for added, side, neighbor in ADDED:
        names = [step.name for step in steps]
        if side == "before":  # the first of that name
            position = names.index(neighbor)
        else:  # after the last of that name
            position = len(names) - names[::-1].index(neighbor)
        steps.insert(position, added)
    return tuple(steps)


def _neighbor(name: str, before: str | None, after: str | None, location: str) -> str:
    """The pass beside which the new pass `name` is added. Raises ValueError."""
    names = [step.name for step in every_pass()]
    neighbor = before or after
    if neighbor is None or (before and after):
        raise ValueError(
            f"{location}: the pass {name!r} needs `before` or `after`, not both"
        )
    if neighbor not in names:
        close = difflib.get_close_matches(neighbor, names, 3) or list(
            dict.fromkeys(names)
        )
        raise ValueError(
            f"{location}: no pass is called {neighbor!r}; one of {', '.join(close)}"
        )
    if name in names:
        raise ValueError(f"{location}: there is a pass {name!r} already")
    return neighbor


def add_pass(
    name: str,
    *,
    before: str | None = None,
    after: str | None = None,
    removes: tuple[str, ...] = (),
    changes_interface: bool = False,
    touches: tuple[str, ...] = (),
) -> Callable[[Rewrite], Rewrite]:
    """Add a function `(graph, context)` that rewrites a torch._C.Graph in place to the passes, for
    all models: before the first pass called `before`, or after the last one called `after`.

    `removes` are the operators that no graph has after it, which is verified. With `touches`, the
    pass is skipped for a graph without any of these operators. Raises ValueError if neither or both
    positions are passed, no pass has that name, or a pass `name` already exists.
    """

    def add(rewrite: Rewrite) -> Rewrite:
        code = rewrite.__code__
        location = f"{code.co_filename}:{code.co_firstlineno}"
        neighbor = _neighbor(name, before, after, location)
        step = Pass(
            name,
            rewrite,
            removes,
            changes_interface,
            touches=touches,
            defined_at=location,
        )
        ADDED.append((step, "before" if before else "after", neighbor))
        return rewrite

    return add


def passes_for(half: bool) -> tuple[Pass, ...]:
    """The passes that conversion adds for half or full precision."""
    return HALF if half else FULL


def run_passes(
    graph: Graph,
    context: Context,
    passes: Sequence[Pass] | None = None,
    *,
    stop_after: str | None = None,
    keep_text: bool = False,
    paranoid: Paranoid | None = None,
    start: Snapshot | None = None,
) -> tuple[PassRecord, ...]:
    """Run `passes` over `graph` in place (by default all), verify after each, and return the record
    of each.

    `stop_after` names the last pass to run (its last occurrence in the list); `keep_text` keeps the
    graph's text around each pass; `paranoid` executes the graph after each; `start` is a snapshot
    of the graph as it is.
    """
    chosen = _up_to(every_pass() if passes is None else passes, stop_after)
    with _collector_paused():
        before = start or Snapshot(graph)
        return tuple(_records(graph, context, chosen, keep_text, paranoid, before))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause Python's cycle collector, which would repeatedly walk the wrappers of all nodes, at a
    cost that grows with the graph.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _records(
    graph: Graph,
    context: Context,
    passes: Sequence[Pass],
    keep_text: bool,
    paranoid: Paranoid | None,
    before: Snapshot,
) -> Iterator[PassRecord]:
    after_pass = dict[str, Snapshot]()
    for step in passes:
        context.lines = before.lines
        context.kinds = before.kinds
        text = canonical(graph) if keep_text else ""
        # A pass is skipped if the graph has not changed since it last ran.
        is_unchanged = after_pass.get(step.name) is before
        if is_unchanged or not step.applies(before.kinds, context):
            yield PassRecord(step.name, before.nodes, before.nodes, 0.0, text, text)
            continue
        start = time.perf_counter()
        _run(step, graph, context)
        seconds = time.perf_counter() - start
        after = verify(graph, step, before)
        if paranoid is not None:
            paranoid.check(graph, step)
        text_after = canonical(graph) if keep_text else ""
        yield PassRecord(
            step.name, before.nodes, after.nodes, seconds, text, text_after
        )
        before = after_pass[step.name] = after
    context.lines = context.kinds = None


def _run(step: Pass, graph: Graph, context: Context) -> None:
    """Run the pass. Raises LoweringError for an exception in a user pass."""
    if not step.defined_at:
        step(graph, context)
        return
    try:
        step(graph, context)
    except TrtBuildError:
        raise
    except Exception as error:
        raise LoweringError(
            f"the pass {step.name} failed: {type(error).__name__}: {error}",
            where=step.defined_at,
            fix="correct the plugin",
        ) from error


def _up_to(passes: Sequence[Pass], stop_after: str | None) -> Sequence[Pass]:
    if stop_after is None:
        return passes
    if stop_after == LOWER_GRAPH:
        return ()
    names = [step.name for step in passes]
    if stop_after not in names:
        raise UsageError(
            f"there is no pass {stop_after!r}",
            fix=f"use one of {', '.join(dict.fromkeys(names))}",
        )
    return passes[: len(names) - names[::-1].index(stop_after)]
