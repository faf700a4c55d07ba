"""`lower`: convert a ScriptModule, an exported program or a graph to a LoweredGraph."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch

from builder.errors import LoweringError, TrtBuildError, UsageError
from builder.frontends import ExportedModule
from builder.graph_types import Graph, Value
from builder.lowering import ir
from builder.lowering.constant_writes import writes_constant
from builder.lowering.containers import Containers, containers
from builder.lowering.emit import Emit
from builder.lowering.executor import constants_to_numbers
from builder.lowering.frozen import frozen_graph
from builder.lowering.graph import LoweredGraph
from builder.lowering.marking import mark_by_record
from builder.lowering.paranoid import Paranoid, seeded
from builder.lowering.passes import Context, torch_passes
from builder.lowering.passes.attention import scale_queries
from builder.lowering.passes.interface import checked, flatten_inputs
from builder.lowering.passes.nones import fold_none_in_loops, remove_empty_updates
from builder.lowering.passes.outputs import flatten_outputs
from builder.lowering.passes.unroll import resolve_static_ifs
from builder.lowering.pipeline import passes_for, run_passes
from builder.lowering.regions import make_plain
from builder.lowering.steps import LOWER_GRAPH, Steps
from builder.lowering.trace import PassRecord

if TYPE_CHECKING:
    from builder.manifest import TensorSpec


def lower(
    module_or_graph: Any,
    params: Sequence[Any] = (),
    *,
    method: str = "forward",
    unroll_limit: int = 64,
    fallback_modules: Collection[str] = (),
    optional_inputs: Collection[str] = (),
    constants: Mapping[str, Any] | None = None,
    max_lengths: Mapping[str, int] | None = None,
    specs: Sequence[TensorSpec] = (),
    keep: Collection[str] = (),
    precision: Any = None,
    paranoid: Any = None,
    stop_after: str | None = None,
    keep_text: bool = False,
) -> LoweredGraph:
    """Lower a ScriptModule, a torch.export.ExportedProgram, or a `torch._C.Graph` whose trailing
    inputs are bound to `params` (tensors or Python values).

    The module is read in evaluation mode; neither it nor a passed graph is changed.
    `optional_inputs` are names of inputs: an Optional argument is bound to None unless they name it
    or its elements, a list or dictionary has the elements that they name. `constants`
    are the values of arguments that are not tensors, by name, `max_lengths` the largest lengths of
    lists among the outputs, by the name of the output (`boxes`, or `output`). `stop_after` names
    the last pass to run (`lower-graph`: none), `keep_text` keeps the graph's text in the trace.
    `paranoid` (inputs, or True with `specs`) executes the graph after every pass. Raises
    LoweringError, with the source line, for what cannot be expressed.
    """
    if isinstance(module_or_graph, torch.export.ExportedProgram):
        module_or_graph = ExportedModule(module_or_graph)
    steps = Steps(keep_text=keep_text)
    fallback = frozenset(fallback_modules)
    graph, names, defaults = _start(module_or_graph, params, method, fallback, steps)
    context = Context(
        unroll_limit=unroll_limit,
        fallback_modules=tuple(fallback_modules),
        optional_inputs=tuple(optional_inputs),
        inputs=names,
        defaults={**defaults, **checked(constants or {}, graph, names)},
        max_lengths=max_lengths or {},
        specs=tuple(specs),
        keep=frozenset(keep),
        precision=precision,
    )
    records = run_passes(
        graph,
        context,
        stop_after=stop_after,
        keep_text=keep_text,
        paranoid=_paranoid(paranoid, specs),
        start=steps.snapshot,
    )
    trace = (*steps.records, *records)
    lowered = _lowered(module_or_graph, graph, context, trace)
    return replace(
        lowered,
        cached_attributes=steps.cached_attributes,
        unread_attributes=steps.unread_attributes,
    )


def _lowered(
    module_or_graph: Any, graph: Graph, context: Context, trace: tuple[PassRecord, ...]
) -> LoweredGraph:
    """The graph with the results that the passes stored in the context."""
    unchecked = context.unchecked
    if isinstance(module_or_graph, ExportedModule):
        unchecked = [*module_or_graph.unchecked, *unchecked]
    return LoweredGraph(
        graph,
        tuple(context.inputs),
        _outputs(module_or_graph, context),
        trace,
        flags=context.flags,
        decided_at=context.decided_at,
        too_long=context.too_long,
        groups=context.groups,
        unchecked=tuple(dict.fromkeys(unchecked)),
        containers=_lists(module_or_graph),
    )


def _outputs(module_or_graph: Any, context: Context) -> tuple[str, ...]:
    """The names of the outputs. The graph of an exported program has flat outputs."""
    if isinstance(module_or_graph, ExportedModule):
        return module_or_graph.outputs
    return tuple(context.outputs)


def _lists(module_or_graph: Any) -> Containers:
    if isinstance(module_or_graph, ExportedModule):
        return containers(module_or_graph.script)
    if isinstance(module_or_graph, torch.jit.ScriptModule):
        return containers(module_or_graph)
    return {}


def for_precision(
    lowered: LoweredGraph,
    half: bool,
    specs: Sequence[TensorSpec] = (),
    *,
    weakly_typed: bool = False,
    stop_after: str | None = None,
    keep_text: bool = False,
) -> LoweredGraph:
    """A copy of the lowered graph in the form for half or full precision (`pipeline.passes_for`).
    `specs` are the inputs' TensorSpecs, if known. `weakly_typed` is for TensorRT 8.6. `stop_after`
    and `keep_text` are those of `lower`.
    """
    if not ir.nodes_of(lowered.graph, *scale_queries.touches):
        # the other passes clean up after it
        return lowered
    graph = lowered.graph.copy()
    context = Context(specs=tuple(specs), weakly_typed=weakly_typed)
    trace = run_passes(
        graph, context, passes_for(half), stop_after=stop_after, keep_text=keep_text
    )
    return replace(lowered, graph=graph, trace=(*lowered.trace, *trace))


AS_WRITTEN = (
    flatten_inputs,
    torch_passes.inline,
    torch_passes.propagate_constants,  # arguments that are bound decide branches
    resolve_static_ifs,
    fold_none_in_loops,
    remove_empty_updates,
    flatten_outputs,
    torch_passes.lower_tuples_of_torch,
    torch_passes.eliminate_dead_code,
)
"""Passes that flatten a graph's inputs and outputs to tensors, and do not change its computation.
"""


def as_written(
    module: torch.jit.ScriptModule | ExportedModule,
    reason: TrtBuildError,
    *,
    optional_inputs: Collection[str] = (),
    constants: Mapping[str, Any] | None = None,
    max_lengths: Mapping[str, int] | None = None,
    specs: Any = (),
) -> LoweredGraph:
    """The module's graph with its in-place writes, which only torch can run, and as a whole. Inputs
    are copied before they are written. Raises `reason` if the graph writes a constant of the model,
    and LoweringError if its interface cannot be determined.
    """
    steps = Steps()
    graph, names, defaults = _start(
        module, (), "forward", frozenset(), steps, keep_objects=True
    )
    context = Context(
        optional_inputs=tuple(optional_inputs),
        inputs=names,
        defaults={**defaults, **checked(constants or {}, graph, names)},
        max_lengths=max_lengths or {},
        specs=tuple(specs),
    )
    trace = (*steps.records, *run_passes(graph, context, AS_WRITTEN))
    if writes_constant(graph):
        raise reason
    aliases = graph.alias_db()
    _copy(graph, [value for value in graph.inputs() if aliases.has_writers(value)])
    return replace(
        _lowered(module, graph, context, trace),
        as_written=str(reason),
        cached_attributes=steps.cached_attributes,
        unread_attributes=steps.unread_attributes,
    )


def _copy(graph: Graph, inputs: Sequence[Value]) -> None:
    """Let the graph read and write copies of these inputs."""
    first = ir.first_node(graph)
    for value in inputs:
        copy = Emit(graph, first).op("aten::clone", value, None)
        value.replaceAllUsesAfterNodeWith(copy.node(), copy)


def _paranoid(paranoid: Any, specs: Sequence[TensorSpec]) -> Paranoid | None:
    """The checker for `paranoid`: None, True (random inputs that fit `specs`), the inputs
    themselves, or a checker.
    """
    if paranoid is None or paranoid is False:
        return None
    if isinstance(paranoid, Paranoid):
        return paranoid
    if paranoid is True and not specs:
        raise UsageError(
            "paranoid lowering needs inputs to run with",
            fix="pass the inputs, or specs",
        )
    return Paranoid(seeded(specs) if paranoid is True else paranoid)


def _start(
    module_or_graph: Any,
    params: Sequence[Any],
    method: str,
    fallback_modules: frozenset[str],
    steps: Steps,
    *,
    keep_objects: bool = False,
) -> tuple[Any, list[str], dict[str, Any]]:
    """The graph to rewrite, the names of its inputs, and their defaults. `steps` is filled."""
    if isinstance(module_or_graph, torch.jit.ScriptFunction):
        module_or_graph = module_or_graph.inlined_graph
    if isinstance(module_or_graph, torch._C.Graph):
        return _start_graph(cast(Graph, module_or_graph), params, steps)
    if isinstance(module_or_graph, ExportedModule):
        return _start_exported(module_or_graph, fallback_modules, steps)
    if isinstance(module_or_graph, torch.jit.ScriptModule):
        return _start_module(
            module_or_graph, method, fallback_modules, steps, keep_objects
        )
    raise LoweringError(
        f"cannot lower a {type(module_or_graph).__name__}",
        fix="script, trace or export it first: torch.jit.script(model)",
    )


def _start_graph(
    original: Graph, params: Sequence[Any], steps: Steps
) -> tuple[Graph, list[str], dict[str, Any]]:
    graph = original.copy()
    make_plain(graph)
    # a trace contains the shapes of its example inputs
    ir.C._jit_pass_erase_shape_information(graph)
    constants_to_numbers(graph)
    steps.begin(graph)
    bind(graph, params)
    steps.end(LOWER_GRAPH, graph)
    return graph, ir.unique_names(graph.inputs()), {}


def _start_module(
    module: torch.jit.ScriptModule,
    method: str,
    fallback_modules: frozenset[str],
    steps: Steps,
    keep_objects: bool,
) -> tuple[Graph, list[str], dict[str, Any]]:
    graph, schema = frozen_graph(
        module, method, fallback_modules, keep_objects=keep_objects, steps=steps
    )
    nothing = ("NoneType", "Tuple[()]", "()")
    if all(str(returned.type) in nothing for returned in schema.returns):
        raise LoweringError(
            f"{method} returns nothing",
            fix="return a tensor, or a tuple, list or dictionary of them",
        )
    arguments = schema.arguments[1:]
    defaults = {
        argument.name: argument.default_value
        for argument in arguments
        if argument.has_default_value()
    }
    return graph, [argument.name for argument in arguments], defaults


def _start_exported(
    module: ExportedModule, fallback_modules: frozenset[str], steps: Steps
) -> tuple[Any, list[str], dict[str, Any]]:
    """As `_start`, for an exported program: its graph has flat tensors and constants only."""
    graph = module.graph.copy()
    ir.C._jit_pass_erase_shape_information(graph)
    steps.begin(graph)
    if fallback_modules:
        mark_by_record(graph, module.script._c, fallback_modules)
    steps.end(LOWER_GRAPH, graph, changed=bool(fallback_modules))
    return graph, list(module.inputs), {}


def bind(graph: Graph, params: Sequence[Any]) -> None:
    """Replace the last `len(params)` inputs of `graph` by constants."""
    count = len(list(graph.inputs())) - len(params)
    if count < 0:
        raise LoweringError(
            f"{len(params)} params for a graph with {count + len(params)} inputs"
        )
    first = ir.first_node(graph)
    constants = ir.insert_constants(graph, params, first)
    for value, constant in zip(list(graph.inputs())[count:], constants, strict=True):
        value.replaceAllUsesWith(constant)
    for index in reversed(range(count, count + len(params))):
        graph.eraseInput(index)
