"""Lower a module and convert its graph to a TensorRT network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch

from builder.conversion import converters, decomposing, dtypes, evaluators, packing
from builder.conversion.context import ConversionContext, axis_symbol
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.facts import is_tensor
from builder.conversion.network import LayerNames, NetworkBackend
from builder.conversion.precision import SCHEMES, Policy, policy, quantizes
from builder.conversion.unconvertible import Unconvertible
from builder.conversion.walker import MISSING, MOST_AXES, GraphWalker
from builder.conversion.weights import Weights
from builder.dtypes import dtype_of
from builder.engine import ITensor, new_network, tensorrt8
from builder.errors import (
    ConversionError,
    EngineError,
    UnsupportedOperators,
    UsageError,
)
from builder.frontends import ExportedModule
from builder.graph_types import Graph, Node, Value
from builder.lowering import LoweredGraph, for_precision, lower
from builder.manifest import Profile, TensorSpec, axis_ranges

_ = converters, decomposing, evaluators  # imported for their registrations


@dataclass(frozen=True)
class Conversion:
    """A TensorRT network and the objects that it refers to. `weights` must live until the engine is
    built.
    """

    network: Any
    builder: Any
    lowered: LoweredGraph
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[str, ...]
    output_dtypes: tuple[torch.dtype, ...]
    profiles: tuple[Profile, ...]
    precision: str
    weights: Weights
    warnings: tuple[str, ...] = field(default=())
    tensors: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The network's tensors by the name of their graph value."""
    masks: frozenset[str] = frozenset()
    """The values of the graph that are limited where they become half."""


@dataclass(frozen=True)
class _Source:
    """What is converted: a graph, lowered for the precision, with the specs of its inputs."""

    lowered: LoweredGraph
    specs: tuple[TensorSpec, ...]
    profiles: tuple[Profile, ...]
    precision: str
    rules: Policy


def convert(
    module_or_graph: Any,
    inputs: Sequence[TensorSpec] | None = None,
    params: Sequence[Any] = (),
    precision: str = "fp32",
    *,
    profiles: Sequence[Profile] | None = None,
    output_names: Sequence[str] | None = None,
    unroll_limit: int = 64,
    keep_fp32: Sequence[str] = (),
) -> Conversion:
    """Lower a ScriptModule, torch.export.ExportedProgram or torch._C.Graph (or take a LoweredGraph)
    and convert it to a TensorRT network.

    `inputs` has one TensorSpec for each input, in order. An exported program has its own specs, and
    `inputs` may narrow their ranges. The trailing inputs of a graph are bound to `params`. Without
    `profiles` there is one profile with the specs' ranges. `keep_fp32` are patterns of layer names
    that stay in float32. Raises UnsupportedOperators (all of them), LoweringError, ConversionError
    (a defect of a converter), and UsageError if the specs do not fit the graph, or an 8-bit
    precision is requested for a module that is not quantized.
    """
    lowered, inputs = _lowered(module_or_graph, inputs, params, unroll_limit)
    specs = named_inputs(inputs, lowered)
    rules = policy(precision, tuple(keep_fp32))
    if lowered is not module_or_graph:
        _check_quantized(precision, lowered)
    lowered = for_precision(
        lowered, bool(rules.half), specs, weakly_typed=not rules.typed
    )
    profiles = tuple(profiles) if profiles is not None else (axis_ranges(specs),)
    source = _Source(lowered, specs, profiles, precision, rules)
    return _conversion(source, output_names, unroll_limit)


def _lowered(
    module_or_graph: Any,
    inputs: Sequence[TensorSpec] | None,
    params: Sequence[Any],
    unroll_limit: int,
) -> tuple[LoweredGraph, Sequence[TensorSpec]]:
    """The lowered graph and the specs of its inputs, which an exported program contains."""
    if isinstance(module_or_graph, torch.export.ExportedProgram):
        module_or_graph = ExportedModule(module_or_graph)
    if isinstance(module_or_graph, ExportedModule):
        inputs = module_or_graph.axes.chosen(inputs)
    elif inputs is None:
        raise UsageError("convert requires `inputs`: one TensorSpec for each input")
    if isinstance(module_or_graph, LoweredGraph):
        return module_or_graph, inputs
    names = [spec.name for spec in inputs if spec.name]
    lowered = lower(
        module_or_graph,
        params,
        unroll_limit=unroll_limit,
        optional_inputs=names,
        specs=inputs,
    )
    return lowered, inputs


def _check_quantized(precision: str, lowered: LoweredGraph) -> None:
    """Raise UsageError if an 8-bit precision is requested and nothing is quantized."""
    if precision in SCHEMES and not quantizes(lowered.graph):
        raise UsageError(
            f"precision {precision!r}: this graph has no quantized nodes",
            fix=(
                "builder.quantize(builder.lower(module), ...) first; in a manifest the key is"
                " `calibration`"
            ),
        )


def _conversion(
    source: _Source, output_names: Sequence[str] | None, unroll_limit: int
) -> Conversion:
    """Create the network, with outputs that are marked and named."""
    trt_builder, network, messages = new_network()
    ctx = ConversionContext(network, source.profiles, messages)
    ctx.unroll_limit = unroll_limit
    results = _walked(ctx, source)
    names = _output_names(output_names, source.lowered, len(results))
    marked = [
        _mark_output(ctx, result, name)
        for result, name in zip(results, names, strict=True)
    ]
    tensorrt8.separate_products(network)
    tensorrt8.keep_infinities(network, ctx.weights.of)
    if not source.rules.half:
        tensorrt8.pin(network)
    return Conversion(
        network,
        trt_builder,
        source.lowered,
        source.specs,
        names,
        tuple(marked),
        source.profiles,
        source.precision,
        ctx.weights,
        tuple(dict.fromkeys(ctx.warnings)),
        {name: value for name, value in ctx.values.items() if is_tensor(value)},
        source.rules.masks,
    )


def _walked(ctx: ConversionContext, source: _Source) -> list[Any]:
    """Convert every node and return the values of the graph's outputs. Raises UnsupportedOperators
    with all refused nodes.
    """
    graph = source.lowered.graph
    rules = source.rules
    if rules.half and not _has_dtype(graph, source.specs, rules.half):
        ctx.policy_half = rules.half
    for value, spec in zip(graph.inputs(), source.specs, strict=True):
        ctx.values[value.debugName()] = add_input(ctx, spec)
    backend = NetworkBackend(ctx, rules, LayerNames(source.lowered.containers))
    results = GraphWalker(ctx, backend).walk(graph)
    outputs = list(zip(graph.outputs(), results, strict=True))
    for value, result in outputs:
        if packing.is_packed(result):
            backend.report(
                value.node(),
                "a part of a packed sequence is an output of the model",
                packing.UNPACK,
            )
    if backend.unsupported:
        raise UnsupportedOperators(backend.unsupported)
    if not ctx.policy_half:
        return results
    return [_restored(ctx, value, result, ctx.policy_half) for value, result in outputs]


def convert_again(
    conversion: Conversion,
    keep_fp32: Sequence[str],
    masks: Collection[str] | None = None,
) -> Conversion:
    """Repeat the conversion with other patterns for the layers that stay in float32, and with
    limits for the `masks` of its graph (default: the same).
    """
    rules = replace(
        policy(conversion.precision, tuple(keep_fp32)),
        masks=conversion.masks if masks is None else frozenset(masks),
    )
    source = _Source(
        conversion.lowered,
        conversion.inputs,
        conversion.profiles,
        conversion.precision,
        rules,
    )
    return _conversion(source, conversion.outputs, unroll_limit=64)


def named_inputs(
    inputs: Sequence[TensorSpec], lowered: LoweredGraph
) -> tuple[TensorSpec, ...]:
    """The specs. A spec without a name gets the name of the graph's input."""
    if len(inputs) != len(lowered.inputs):
        raise UsageError(
            f"the model has {len(lowered.inputs)} inputs ({', '.join(lowered.inputs)}),"
            f" {len(inputs)} are specified",
            fix=(
                "pass one spec for each input, in order; an Optional argument is an input if a "
                "spec has its name"
            ),
        )
    specs = tuple(
        spec if spec.name else replace(spec, name=name)
        for spec, name in zip(inputs, lowered.inputs, strict=True)
    )
    _all_different("inputs", [str(spec.name) for spec in specs])
    return specs


def _all_different(kind: str, names: Sequence[str]) -> None:
    """Raise UsageError if two inputs or two outputs have the same name."""
    for name, times in Counter(names).items():
        if times > 1:
            raise UsageError(
                f"two {kind} have the name {name!r}", fix="use unique names"
            )


def _output_names(
    requested: Sequence[str] | None, lowered: LoweredGraph, count: int
) -> tuple[str, ...]:
    names = tuple(requested) if requested else lowered.outputs
    if len(names) != count:
        raise UsageError(
            f"the model has {count} outputs ({', '.join(lowered.outputs)}), {len(names)} are named"
        )
    _all_different("outputs", names)
    return names


def unreadable(spec: TensorSpec) -> str | None:
    """Why TensorRT has no tensor of this dtype or rank, or None."""
    if spec.dtype == "float64":
        return "TensorRT has no float64"
    if len(spec.shape) > MOST_AXES:
        return f"TensorRT has no tensor of more than {MOST_AXES} axes"
    try:
        _input_dtype(spec)
    except Unconvertible as missing:
        return missing.reason
    return None


def _input_dtype(spec: TensorSpec) -> Any:
    """TensorRT's DataType of an input. Raises Unconvertible if the flavor does not have it."""
    return dtypes.to_trt(dtypes.endpoint(getattr(torch, spec.dtype), "INPUT"))


def add_input(ctx: ConversionContext, spec: TensorSpec) -> ITensor:
    """Add a network input with named dynamic axes. An axis whose range is one size is static."""
    dtype = getattr(torch, spec.dtype)
    if reason := unreadable(spec):
        fix = "declare float32, and cast in the model if it needs more"
        if len(spec.shape) > MOST_AXES:
            fix = "join axes, and divide them in the model"
        raise UsageError(f"input {spec.name}: {reason}", fix=fix)
    shape = [
        axis if isinstance(axis, int) else _fixed(ctx, axis) for axis in spec.shape
    ]
    tensor = ctx.net.add_input(cast(str, spec.name), _input_dtype(spec), shape)
    if tensor is None:
        raise EngineError(
            f"TensorRT refused the input {spec.name}: {'; '.join(ctx.messages[-3:])}"
        )
    for position, (axis, length) in enumerate(zip(spec.shape, shape, strict=True)):
        if length < 0:
            tensor.set_dimension_name(position, str(axis))
            ctx.facts(tensor).exprs[position] = axis_symbol(str(axis))
    return _carried(ctx, tensor, dtype)


def _fixed(ctx: ConversionContext, axis: str) -> int:
    sizes = {size for profile in ctx.profiles for size in profile[axis]}
    return sizes.pop() if len(sizes) == 1 else -1


def _carried(ctx: ConversionContext, tensor: ITensor, dtype: torch.dtype) -> ITensor:
    """Cast inputs of the small integer dtypes to their carrier."""
    carrier = dtypes.carrier(dtype)
    if dtypes.from_trt(tensor.dtype) == carrier:
        if carrier != dtype:
            ctx.facts(tensor).dtype = dtype
        return tensor
    result = ctx.net.add_cast(tensor, dtypes.to_trt(carrier)).get_output(0)
    ctx.copy_sizes(tensor, result)
    ctx.facts(result).dtype = dtype
    return result


def _has_dtype(graph: Graph, specs: Sequence[TensorSpec], dtype: torch.dtype) -> bool:
    """Whether the module itself uses the dtype.

    An output of that dtype then belongs to the module, not to the precision policy. An input of
    that dtype that is only widened comes from `io: fp16`.
    """
    weights = (
        node.t("value")
        for node in graph.findAllNodes("prim::Constant")
        if node.hasAttribute("value") and node.kindOf("value") == "t"
    )
    inputs = (
        value
        for value, spec in zip(graph.inputs(), specs, strict=True)
        if getattr(torch, spec.dtype) == dtype
    )
    return any(weight.dtype == dtype for weight in weights) or any(
        not _only_widened(value) for value in inputs
    )


def _only_widened(value: Value) -> bool:
    return all(_cast_to(use.user) == torch.float32 for use in value.uses())


def _cast_to(node: Node) -> torch.dtype | None:
    """The dtype argument of a cast, as a number."""
    if node.kind() != "aten::to" or not isinstance(node.inputsAt(1).toIValue(), int):
        return None
    return dtype_of(node.inputsAt(1).toIValue())


def _restored(
    ctx: ConversionContext, value: Value, result: Any, half: torch.dtype
) -> ITensor:
    """Cast an output back to float32 if the precision policy made it half. An output that the graph
    casts to half is not changed.
    """
    policys = (
        is_tensor(result)
        and ctx.dtype(result) == half
        and _cast_to(value.node()) != half
    )
    return ctx.cast(result, torch.float32) if policys else result


def _mark_output(ctx: ConversionContext, result: object, name: str) -> torch.dtype:
    """Mark one output. An input that is passed through, a constant, or a repeated value gets an
    identity layer.
    """
    if result is None or result is MISSING or isinstance(result, list | dict | str):
        raise ConversionError(f"output {name} is not a tensor", where=name)
    tensor = ctx.tensor(result)
    dtype = ctx.dtype(result if isinstance(result, DynamicScalar) else tensor)
    endpoint = dtypes.endpoint(dtype, "OUTPUT")
    if dtypes.from_trt(tensor.dtype) != endpoint:
        tensor = ctx.net.add_cast(tensor, dtypes.to_trt(endpoint)).get_output(0)
    elif _is_used(ctx, tensor):
        tensor = ctx.net.add_identity(tensor).get_output(0)
    ctx.rename(tensor, name)
    ctx.net.mark_output(tensor)
    tensorrt8.set_output_dtype(tensor, dtypes.to_trt(endpoint))
    return dtype


def _is_used(ctx: ConversionContext, tensor: ITensor) -> bool:
    """Whether the tensor is a network input, already an output, or a constant, and so cannot be
    marked as an output.
    """
    if tensor.is_network_input or tensor.is_network_output:
        return True
    return ctx.is_constant(tensor)
