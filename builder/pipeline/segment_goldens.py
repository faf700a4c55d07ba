"""Record the goldens of each segment, and compare each network with them on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builder import lowering, parity, triton
from builder.errors import ParityError
from builder.manifest import ModelSpec, TensorSpec
from builder.pipeline import calibration

if TYPE_CHECKING:
    import torch

    from builder.conversion import Conversion
    from builder.lowering import LoweredGraph
    from builder.partition import Partition, Segment
    from builder.triton import Golden

Goldens = tuple["Golden", ...]


def record(
    partition: Partition,
    goldens: Sequence[Golden],
    spec: ModelSpec,
    *,
    compares: bool = True,
) -> tuple[Goldens, ...]:
    """The goldens of each segment: torch runs the segments in sequence on the inputs of the
    goldens. Raises ParityError if the final outputs differ from the original module's, unless
    `compares` is False.
    """
    chains = [_chain(partition, golden, spec, compares) for golden in goldens]
    count = len(partition.segments)
    return tuple(tuple(chain[number] for chain in chains) for number in range(count))


def _chain(
    partition: Partition, golden: Golden, spec: ModelSpec, compares: bool
) -> list[Golden]:
    values = {name: parity.to_torch(golden.inputs[name]) for name in partition.inputs}
    recorded = []
    for segment in partition.segments:
        inputs = {name: values[name] for name in segment.inputs}
        results = dict(
            zip(segment.outputs, segment.lowered.run(*inputs.values()), strict=True)
        )
        values.update(results)
        recorded.append(golden_of(golden.name, inputs, results))
    if not compares:
        return recorded
    results = {name: values[name] for name in partition.outputs}
    tensors = lowering.present(results, partition.flags, partition.too_long)
    outputs = {name: parity.to_numpy(tensor) for name, tensor in tensors.items()}
    _raise_unless(
        parity.compare(
            outputs, golden, spec.tolerance, precision=torch_precision(spec)
        ),
        f"golden {golden.name}: the segments, run by torch, differ from the module",
        _kinds(partition.segments),
        _random(partition.segments),
    )
    return recorded


def with_rounded(
    spec: ModelSpec,
    lowered: LoweredGraph,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[str],
) -> ModelSpec:
    """The spec with the tolerance of a graph with these inputs and outputs: it names those outputs
    that depend on results that the graph itself rounds to 16 bits.
    """
    pairs = zip(outputs, lowering.rounded_outputs(lowered.graph, inputs), strict=False)
    rounded = {name: dtype for name, dtype in pairs if dtype}
    return replace(spec, tolerance=replace(spec.tolerance, rounded=rounded))


def of_network(spec: ModelSpec, conversion: Conversion) -> ModelSpec:
    """The spec with the tolerance of a network, whose goldens have exact inputs."""
    return with_rounded(spec, conversion.lowered, conversion.inputs, conversion.outputs)


def golden_of(
    name: str, inputs: Mapping[str, torch.Tensor], outputs: Mapping[str, torch.Tensor]
) -> Golden:
    """A golden of these tensors, as arrays."""
    arrays = {key: parity.to_numpy(tensor) for key, tensor in inputs.items()}
    return triton.Golden(
        name, arrays, {key: parity.to_numpy(tensor) for key, tensor in outputs.items()}
    )


def _random(segments: Sequence[Segment]) -> str | None:
    """The first random operator."""
    for segment in segments:
        operator = lowering.ir.random_operator(segment.lowered.graph)
        if operator:
            return operator
    return None


def _kinds(segments: Sequence[Segment]) -> str:
    return ", ".join(
        f"{number}.{segment.kind}" for number, segment in enumerate(segments)
    )


def _passes_of_plugins() -> list[str]:
    return [
        f"{step.name} ({step.defined_at})"
        for step in lowering.every_pass()
        if step.defined_at
    ]


def _defect() -> str:
    """What to do where the lowered graph is wrong; a pass of a plugin is named."""
    added = _passes_of_plugins()
    if added:
        return (
            f"a pass of a plugin may change the outputs: {', '.join(added)}; `trt-build"
            " check --paranoid` names the pass"
        )
    return (
        "this is a defect of trt-build: please report it with the model's graph"
        " (`trt-build lower`)"
    )


def _raise_unless(
    comparison: Any, message: str, where: str, random: str | None
) -> None:
    if comparison.passed:
        return
    fix = _fix_of_random(random) if random else _defect()
    raise ParityError(
        f"{message}: {'; '.join(comparison.problems)}", where=where, fix=fix
    )


def _fix_of_random(operator: str) -> str:
    """What to do where an operator is random."""
    remedy = "pass the random numbers as an input"
    if "dropout" in operator:
        remedy = (
            "call model.eval() before torch.jit.trace, or pass training=self.training"
        )
    return f"{operator} is random, so outputs cannot be compared: {remedy}"


_FIX = (
    "this is a defect of a converter: please report it with what `trt-build bisect --reduce DIR`"
    " writes; `fallback` keeps the operator in torch"
)
_FIX_HALF = (
    "list layers that exceed float16 in keep_fp32 (`--search-precision` finds and writes them), or "
    "use precision: fp32"
)
_FIX_HALF_LAYERS = (
    "the model has layers of float16 or bfloat16, whose rounding exceeds the tolerance of"
    " float32: set a `tolerance` in the manifest, or `precision: fp16` or bf16"
)
_FIX_PACKED = (
    "torch packs a padded batch as nested tensors here, and then returns zeros for padding, which"
    " the network does not: build nn.TransformerEncoder with enable_nested_tensor=False"
)
_FIX_8_BITS = (
    "list the layers with the lowest SQNR (`trt-build check`) in keep_fp32, calibrate with more "
    "data or another method, or allow more with tolerance: {noise: ...}"
)

_FIX_DATA = (
    "calibrate with more data, add `goldens` to calibration: {data}, which widens the ranges, or"
    " allow more with tolerance: {noise: ...}"
)


def eight_bits(spec: ModelSpec) -> bool:
    """Whether quantization, rather than a defect, is the likely reason for a difference."""
    from builder.conversion import SCHEMES

    return spec.precision in SCHEMES


def _fix(spec: ModelSpec, module: Any) -> str:
    """The fix to suggest if a network differs. It names the functions and passes of plugins."""
    from builder.conversion import HALF, plugin_functions

    if eight_bits(spec):
        return _FIX_8_BITS
    if spec.precision in HALF:
        return _FIX_HALF
    added = [*plugin_functions(), *_passes_of_plugins()]
    if added:
        return (
            f"a plugin may change the outputs: {', '.join(added)}; without it trt-build"
            " converts the operators if it can"
        )
    if _packs_padding(module):
        return _FIX_PACKED
    return _FIX


def _half_precision(conversion: Conversion) -> str | None:
    """The precision of values of float16 or bfloat16 in a network of full precision."""
    from builder.conversion import HALF

    if conversion.precision in HALF:
        return None
    names = {tensor.dtype.name for tensor in conversion.tensors.values()}
    return next(
        (precision for name, precision in _HALF_DTYPES.items() if name in names), None
    )


_HALF_DTYPES = {"BF16": "bf16", "HALF": "fp16"}
"""The precision by name of TensorRT's dtype, the less precise one first."""


def _packs_padding(module: Any) -> bool:
    """Whether the module's code may pack a padded batch as nested tensors."""
    graph = getattr(module, "inlined_graph", None)
    return "aten::_nested_tensor_from_mask(" in str(graph)


def torch_precision(spec: ModelSpec) -> str:
    """The precision that determines the tolerance of torch's run: quantizing nodes round, all
    others are float32.
    """
    return spec.precision if eight_bits(spec) else "fp32"


def check_reference(
    conversion: Conversion,
    goldens: Sequence[Golden],
    spec: ModelSpec,
    module: Any = None,
    *,
    of: str = "the network",
) -> None:
    """Raise ParityError, with the first differing tensor, if the network evaluated on the CPU
    differs from a golden. The error names a known cause in the original `module`.
    """
    spec = of_network(spec, conversion)
    for golden in goldens:
        tensors = network_inputs(conversion, golden)
        outputs = network_outputs(conversion, tensors, golden)
        comparison = parity.compare(
            outputs, golden, spec.tolerance, precision=spec.precision
        )
        if not comparison.passed:
            raise ParityError(
                f"golden {golden.name}: {of} differs from the module:"
                f" {'; '.join(comparison.problems)}",
                where=parity.first_difference(conversion, tensors),
                fix=_fix_of_network(conversion, golden, outputs, spec, module),
            )


def _fix_of_network(
    conversion: Conversion,
    golden: Golden,
    outputs: dict[str, Any],
    spec: ModelSpec,
    module: Any,
) -> str:
    """The fix to suggest if the network's `outputs` differ from the golden."""
    half = _half_precision(conversion)
    if half and parity.compare(outputs, golden, precision=half).passed:
        return _FIX_HALF_LAYERS
    tensors = [_nudged(tensor) for tensor in network_inputs(conversion, golden)]
    nudged = network_outputs(conversion, tensors, golden)
    network_golden = replace(golden, outputs=outputs)
    stable = parity.compare(
        nudged, network_golden, spec.tolerance, precision=spec.precision
    )
    if not (stable.passed and _is_stable(module, tensors, golden, spec)):
        return AMPLIFIES
    if eight_bits(spec) and (reason := calibration.beyond_data(spec, golden)):
        return f"{reason}: {_FIX_DATA}"
    if spec.precision == "fp32" and _accumulates(conversion, golden, spec):
        return ACCUMULATES
    return _fix(spec, module)


def _accumulates(conversion: Conversion, golden: Golden, spec: ModelSpec) -> bool:
    """Whether the lowered graph is within the tolerance, and so is each value of the network that
    is computed from the values of the graph.
    """
    inputs = network_inputs(conversion, golden)
    outputs = dict(
        zip(conversion.outputs, conversion.lowered.run(*inputs), strict=True)
    )
    graph = golden_of(golden.name, {}, outputs).outputs
    lowered = parity.compare(parity.widened(graph, golden), golden, spec.tolerance)
    return lowered.passed and parity.agrees_separately(conversion, inputs)


def _is_stable(
    module: Any, nudged: Sequence[torch.Tensor], golden: Golden, spec: ModelSpec
) -> bool:
    """Whether the original module's outputs for the `nudged` inputs are within the tolerance of the
    golden; also if it is not known. A cancellation may leave only the module's rounding error.
    """
    import torch

    if module is None or list(golden.inputs) != [one.name for one in spec.inputs]:
        return True  # a segment has other inputs than the module
    try:
        with torch.no_grad():
            result = parity.call_module(module, spec.inputs, nudged, spec.constants)
        values = [parity.to_numpy(tensor) for _, tensor in parity.leaves(result)]
        named = dict(zip(golden.outputs, values, strict=True))
    except Exception:  # the module may refuse the inputs, or return other outputs
        return True
    return parity.compare(
        parity.widened(named, golden), golden, spec.tolerance, precision=spec.precision
    ).passed


def network_inputs(conversion: Conversion, golden: Golden) -> list[torch.Tensor]:
    """The golden's inputs in the order of the network's inputs."""
    return [
        parity.to_torch(golden.inputs[str(spec.name)]) for spec in conversion.inputs
    ]


def network_outputs(
    conversion: Conversion, tensors: Sequence[torch.Tensor], golden: Golden
) -> dict[str, Any]:
    """The outputs of the network, evaluated on the CPU, as arrays of the golden's dtypes. Raises
    NetworkEvaluationError.
    """
    from builder import reference

    outputs = reference.run(conversion, tensors)
    return parity.widened(
        dict(zip(conversion.outputs, map(parity.to_numpy, outputs), strict=True)),
        golden,
    )


_TRAIN = (
    "Train it, set the statistics of its normalization layers from real data, or set a `tolerance`"
    " in the manifest"
)
AMPLIFIES = (
    "the model amplifies rounding: for inputs that differ by one rounding step its own "
    f"outputs differ by more than the tolerance. {_TRAIN}"
)
ACCUMULATES = (
    "the model amplifies rounding: each operator is within the tolerance for the same operands, "
    f"but their rounding errors add up. {_TRAIN}"
)


def _nudged(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with every second element changed by one rounding step of its dtype."""
    import torch

    if not tensor.is_floating_point():
        return tensor
    signs = torch.arange(tensor.numel()).remainder(2).reshape(tensor.shape)
    return tensor * (1 + signs * torch.finfo(tensor.dtype).eps).to(tensor.dtype)
