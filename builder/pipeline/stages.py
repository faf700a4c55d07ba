"""The stages of one model as typed values, and the functions from each to the next.

load       Loaded      the module of the file
lower      Lowered     its graph after all passes
record     Recorded    the original module's answers: the goldens
prepare    Prepared    quantized, with float16 endpoints and the batch first, as in the spec
convert    Converted   one TensorRT network, or a partition with a network for each segment
build      Built       the plan of each network
assemble   Checked     what will be published
publish    Published   the model's folder in the repository
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from builder import frontends, lowering, manifest, parity, quantization, triton
from builder.errors import InPlaceError, KeyMistake, TrtBuildError, UsageError
from builder.manifest import ModelSpec, axis_ranges, manifest_location
from builder.pipeline import (
    branches,
    calibration,
    fallback,
    patterns,
    reduced_precision,
    segment_goldens,
    state,
)
from builder.pipeline.branches import Location
from builder.pipeline.order import Order

if TYPE_CHECKING:
    import torch

    from builder.conversion import Conversion
    from builder.engine import BuildOptions, Plan
    from builder.frontends import ExportedModule
    from builder.lowering import LoweredGraph, Paranoid
    from builder.parity import Recording, Recordings
    from builder.pipeline.artifacts import SplitModel
    from builder.quantization import Beyond, Quantized
    from builder.triton import EnsembleArtifact, Golden, ModelArtifact

    Compile = Callable[[Conversion, str], Plan]
    Goldens = tuple[Golden, ...]
    Module: TypeAlias = torch.jit.ScriptModule | ExportedModule


@dataclass(frozen=True)
class Loaded:
    """The spec and the module of its file."""

    spec: ModelSpec
    module: Module

    @property
    def input_names(self) -> list[str]:
        """The names of inputs in the spec: an Optional argument is an input where it is one of
        them.
        """
        return [tensor.name for tensor in self.spec.inputs if tensor.name]


@dataclass(frozen=True)
class Lowered:
    """The module's graph after all passes."""

    spec: ModelSpec
    module: Module
    graph: LoweredGraph

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the model's outputs: those of the manifest, else of the module's result. An
        output with the name of an input is renamed `<name>_out`, because tensor names must be
        unique in Triton.
        """
        if self.spec.outputs:
            return tuple(self.spec.outputs)
        input_names = [str(tensor.name) for tensor in self.spec.inputs if tensor.name]
        return self.graph.distinct([*input_names, *self.graph.inputs])

    @property
    def groups(self) -> dict[str, str]:
        """By the name of each output that is in a list of unknown length, its group."""
        names = dict(zip(self.graph.results, self.outputs, strict=False))
        return {
            names[name]: group
            for name, group in self.graph.groups.items()
            if name in names
        }

    @property
    def optional(self) -> dict[str, str]:
        """By the name of each output that may be None, the source line that decides it."""
        names = dict(zip(self.graph.results, self.outputs, strict=False))
        decided_at = self.graph.decided_at.items()
        return {names[name]: where for name, where in decided_at if name in names}


@dataclass(frozen=True)
class Recorded:
    """The goldens: inputs and outputs of the original module."""

    lowered: Lowered
    goldens: Goldens
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """The model in the form for conversion and serving.

    `quantized` is None without 8-bit precision. `data` are the inputs in the manifest's calibration
    files, as goldens without outputs, if float16's range must be checked with them.
    """

    source: Lowered
    spec: ModelSpec
    graph: LoweredGraph
    outputs: tuple[str, ...]
    goldens: Goldens
    quantized: Quantized | None = None
    warnings: tuple[str, ...] = ()
    data: Goldens = ()


@dataclass(frozen=True)
class Network:
    """One TensorRT network of the model with its goldens. `location` is () for the whole model."""

    location: Location
    conversion: Conversion
    goldens: Goldens

    @property
    def label(self) -> str:
        """`model`, `segment 1`, or `segment 1, part 0, branch true, segment 2`."""
        if self.location:
            return branches.label(self.location)
        return "model"


@dataclass(frozen=True)
class Converted:
    """All networks of the model. `segment_goldens` is empty if one network is the whole model."""

    prepared: Prepared
    result: Conversion | fallback.PartitionedConversion
    networks: tuple[Network, ...]
    segment_goldens: tuple[Goldens, ...]
    warnings: tuple[str, ...]

    @property
    def partitioned(self) -> fallback.PartitionedConversion | None:
        """The partition; None if one network is the whole model."""
        if isinstance(self.result, fallback.PartitionedConversion):
            return self.result
        return None


@dataclass(frozen=True)
class Built:
    """The plan of each network, by its location."""

    converted: Converted
    plans: Mapping[Location, Plan]


@dataclass(frozen=True)
class Checked:
    """The artifact to publish. `layout` is "single", "fused" or "ensemble", with the reason.
    `parity` are the differences of its files' outputs from the goldens.
    """

    built: Built
    artifact: ModelArtifact | EnsembleArtifact
    layout: str
    layout_reason: str
    warnings: tuple[str, ...]
    parity: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Published:
    """The model's folder in the repository."""

    checked: Checked
    path: Path


class NetworkFailure(Exception):
    """The failure of one network of a model, with the `error`."""

    def __init__(self, part: Network, converted: Converted, error: Exception) -> None:
        super().__init__(str(error))
        self.network = part
        self.converted = converted
        self.error = error


@contextmanager
def _fails(part: Network, converted: Converted) -> Iterator[None]:
    """Raise an error inside the block as the NetworkFailure of this network."""
    try:
        yield
    except Exception as error:
        raise NetworkFailure(part, converted, error) from error


Stage = Loaded | Lowered | Recorded | Prepared | Converted | Built | Checked | Published


def load(spec: ModelSpec) -> Loaded:
    """Load the spec's file. Raises ModelFileError; for an exported program also LoweringError, and
    UsageError if the spec allows sizes that its constraints exclude.
    """
    module = frontends.load(spec.path, spec.module, libraries=spec.libraries)
    if isinstance(module, frontends.ExportedModule):
        module.axes.check(spec.inputs, str(spec.manifest) if spec.manifest else None)
    return Loaded(spec, module)


def lower(
    loaded: Loaded, *, keep_text: bool = False, paranoid: bool | Paranoid = False
) -> Lowered:
    """Run the passes that the spec requires.

    `keep_text` keeps the graph's text after each pass. `paranoid` executes the graph after each
    pass, with the inputs of a Paranoid if it is one. In-place writes that cannot be functionalized
    stay, for torch only, unless `fallback.require_full` is set. Raises LoweringError.
    """
    spec = loaded.spec
    module = loaded.module
    try:
        graph = lowering.lower(
            module,
            specs=spec.inputs,
            unroll_limit=spec.unroll_limit,
            fallback_modules=spec.fallback.modules,
            optional_inputs=loaded.input_names,
            constants=spec.constants,
            max_lengths=spec.max_lengths,
            keep_text=keep_text,
            paranoid=_example(loaded) if paranoid is True else paranoid or None,
        )
    except InPlaceError as reason:
        if spec.fallback.require_full:
            raise
        return lower_as_written(loaded, reason)
    except KeyMistake as mistake:
        mistake.where = manifest_location(spec, mistake.key)
        raise
    _check_inputs(spec, graph)
    return Lowered(spec, module, graph)


def lower_as_written(loaded: Loaded, reason: TrtBuildError) -> Lowered:
    """The original module's graph for torch only, with flattened inputs and outputs. Raises
    `reason` if they cannot be flattened.
    """
    spec = loaded.spec
    module = loaded.module
    graph = lowering.as_written(
        module,
        reason,
        optional_inputs=loaded.input_names,
        constants=spec.constants,
        max_lengths=spec.max_lengths,
        specs=spec.inputs,
    )
    _check_inputs(spec, graph)
    return Lowered(spec, module, graph)


def _check_inputs(spec: ModelSpec, graph: LoweredGraph) -> None:
    """Raise UsageError if the manifest has another number of inputs than forward, or one of
    forward's names at another position: inputs are passed by position.
    """
    names = [tensor.name for tensor in spec.inputs]
    known = list(graph.inputs)
    pairs = [*zip(names, known, strict=False)]
    reordered = any(name in known and name != other for name, other in pairs)
    if len(names) == len(known) and not reordered:
        return
    specified = ", ".join(name or "unnamed" for name in names)
    raise UsageError(
        f"the model takes the inputs {', '.join(known)} in this order, and the inputs"
        f" {specified} are specified",
        where=manifest_location(spec, "inputs"),
        fix=(
            "specify one input for each tensor of forward, in its order; an Optional argument is "
            "an input if its name is specified"
        ),
    )


def _example(loaded: Loaded) -> tuple[torch.Tensor, ...]:
    """The inputs of the first golden, without the output names, which come from lowering."""
    return parity.example(loaded.module, replace(loaded.spec, outputs=None))


def record(lowered: Lowered, recordings: Recordings | None = None) -> Recorded:
    """Record the goldens with the original module, or read them from `recordings`. Raises
    UsageError if the server cannot keep its state, ModelFileError if it does not accept the inputs
    of its manifest.
    """
    state.check(lowered.spec, lowered.outputs)
    recording = recordings.find(lowered.outputs) if recordings else None
    if recording is None:
        paths = lowered.graph.results if lowered.graph.flags else ()
        recording = parity.record_goldens(
            lowered.module,
            lowered.spec,
            lowered.outputs,
            paths,
            tuple(lowered.optional),
            lowered.graph.cached_attributes,
            calibration.of_goldens(lowered.spec),
        )
        if recordings:
            recordings.keep(recording, lowered.outputs)
    warnings = (
        *_relation_warnings(lowered),
        *_renaming_warnings(lowered),
        *_optional_warnings(lowered),
        *_list_warnings(lowered, recording.goldens),
        *_unchecked_warnings(lowered),
        *_cache_warnings(lowered),
        *_unread_warnings(lowered),
        *_autocast_warnings(lowered),
        *_without_elements(lowered, recording).warnings_of(_branches(lowered.graph)),
        *(recordings.warnings if recordings else ()),
    )
    return Recorded(lowered, recording.goldens, warnings)


def _renaming_warnings(lowered: Lowered) -> Iterator[str]:
    """A warning for each output that is served with another name than the module's."""
    if lowered.spec.outputs:
        return
    input_names = {
        *(tensor.name for tensor in lowered.spec.inputs),
        *lowered.graph.inputs,
    }
    for name, served in zip(lowered.graph.results, lowered.outputs, strict=True):
        if name == served:
            continue
        reason = "a name that no endpoint has, or that another output has"
        if name in input_names:
            reason = "the name of an input"
        yield (
            f"output {name!r} has {reason}, so it is served as {served!r}; set another name with"
            " `outputs` in the manifest"
        )


def _optional_warnings(lowered: Lowered) -> Iterator[str]:
    """A warning for outputs that may be None, and the consequences."""
    by_line: dict[str, list[str]] = {}
    for name, where in lowered.optional.items():
        if name not in lowered.groups:
            by_line.setdefault(where, []).append(repr(name))
    for where, names in by_line.items():
        noun = "outputs" if len(names) > 1 else "output"
        yield (
            f"{noun} {', '.join(names)} may be None, decided by {where}. A "
            "response leaves out an output that is None, and Triton does not batch requests. "
            "Return a tensor on every path to allow one engine and batching"
        )


def _unchecked_warnings(lowered: Lowered) -> Iterator[str]:
    """A warning for each condition on values for which only the original module raises."""
    for where in lowered.graph.unchecked:
        yield (
            "forward raises on a condition on values, which the served model does not"
            f" check: {where}. It responds to such a request; check requests in the"
            " client, or return the condition as an output"
        )


def _cache_warnings(lowered: Lowered) -> Iterator[str]:
    """A warning if forward keeps values of sizes between calls, which the graph does not."""
    if attributes := lowered.graph.cached_attributes:
        names = ", ".join(repr(attribute.full_name) for attribute in attributes)
        yield (
            f"forward keeps {names}, which it sets from sizes, for later calls:"
            f" {attributes[0].where}. The served model starts each request with the value in"
            " the file, like a module that was just loaded. So it may differ from a"
            " module that had a call with other sizes"
        )


def _unread_warnings(lowered: Lowered) -> Iterator[str]:
    """A warning if forward writes attributes that no output depends on."""
    if attributes := lowered.graph.unread_attributes:
        names = ", ".join(repr(attribute.full_name) for attribute in attributes)
        yield (
            f"forward writes {names}, on which no output depends: {attributes[0].where}."
            " The served model does not write it"
        )


def _list_warnings(lowered: Lowered, goldens: Goldens) -> Iterator[str]:
    """A warning for each list whose length is not known, with the consequences."""
    paths = dict(zip(lowered.outputs, lowered.graph.results, strict=True))
    for name in lowered.graph.too_long:
        most = lowered.spec.max_lengths[name]
        lengths = [
            parity.length_of([paths[output] for output in golden.outputs], name)
            for golden in goldens
        ]
        yield (
            f"output {name!r} is a list of at most {most} elements (max_lengths), {min(lengths)} to"
            f" {max(lengths)} in the goldens. A response leaves out those past its length, and"
            " Triton joins no requests"
        )


def _without_elements(lowered: Lowered, recording: Recording) -> Recording:
    """The recording without its notes on single elements of lists."""
    unseen = tuple(
        output for output in recording.unseen if output[0] not in lowered.groups
    )
    return replace(recording, unseen=unseen)


def _relation_warnings(lowered: Lowered) -> Iterator[str]:
    """A warning for each size that an exported program computes from another, and for each guard
    that the ranges do not fulfill: the program refuses a request with other sizes, the server does
    not.
    """
    if isinstance(lowered.module, frontends.ExportedModule):
        inputs = lowered.spec.inputs
        spans = {
            axis: (low, high) for axis, (low, _, high) in axis_ranges(inputs).items()
        }
        for text in lowered.module.axes.relations(inputs).needed(spans):
            yield f"the program requires {text} in every request, which the server does not check"


def _autocast_warnings(lowered: Lowered) -> Iterator[str]:
    """A warning for each device whose autocast casts none of the program's tensors."""
    if isinstance(lowered.module, frontends.ExportedModule):
        for device in lowered.module.other_autocast:
            yield (
                f"autocast for the device {device!r} casts none of the program's tensors, which"
                " are on the CPU. The served model does not cast them either; set `precision` in"
                " the manifest for a faster engine"
            )


def _branches(lowered: LoweredGraph) -> set[str]:
    """The source locations of the branches and loops that lowering did not resolve."""
    return {
        lowering.source_location(node)
        for node in lowering.ir.nodes_of(lowered.graph, "prim::If", "prim::Loop")
    }


def prepare(recorded: Recorded, spec: ModelSpec | None = None) -> Prepared:
    """Quantize, cast inputs and outputs to float16 and move the batch axis of every state to the
    front, as in the spec (by default the recorded one; the precision search varies it). Raises
    UsageError.
    """
    source = recorded.lowered
    goldens = recorded.goldens
    quantized = None
    graph = source.graph
    spec = segment_goldens.with_rounded(
        own_half(spec or source.spec), graph, source.spec.inputs, source.outputs
    )
    warnings = (
        *recorded.warnings,
        *_bf16_of_float16(source.spec),
        *_unused_calibration(source.spec),
    )
    if reduced_precision.is_needed(spec):
        reduced = reduced_precision.reduced(spec, graph, source.outputs, goldens)
        spec = reduced.spec
        graph = reduced.lowered
        quantized = reduced.quantized
        warnings = (*warnings, *reduced.warnings)
    data = calibration.data_of_files(spec) if _keeps_in_float32(spec) else ()
    *_, data = state.batch_first(spec, graph, source.outputs, data)
    spec, graph, goldens = state.batch_first(spec, graph, source.outputs, goldens)
    return Prepared(
        source, spec, graph, source.outputs, goldens, quantized, warnings, data
    )


def convert(
    prepared: Prepared,
    layout: str = "auto",
    in_torch: fallback.KeptInTorch = fallback.KeptInTorch(),  # noqa: B008
    *,
    compares: bool = True,
) -> Converted:
    """Convert the whole model, or partition it, and record the goldens of each network. `in_torch`
    are nodes that must stay in torch according to earlier attempts. Raises UnsupportedOperators and
    ConversionError with `fallback.require_full`, and ParityError if the segments, run by torch,
    differ from the original module, unless `compares` is False.
    """
    spec = prepared.spec
    converted = fallback.convert_or_partition(
        prepared.graph, spec, prepared.outputs, in_torch
    )
    warnings = _conversion_warnings(prepared, converted)
    if not isinstance(converted, fallback.PartitionedConversion):
        whole = Network((), converted, prepared.goldens)
        return Converted(prepared, converted, (whole,), (), warnings)
    recorded = segment_goldens.record(
        converted.partition, prepared.goldens, spec, compares=compares
    )
    try:
        networks = tuple(_networks(converted, recorded, spec, layout))
    except RuntimeError as error:
        # torch cannot return a value that a branch leaves unset, so it has no golden
        if not in_torch.branches or "Uninitialized" not in str(error):
            raise
        reason = "branches stay in torch as a whole: one leaves a value unset"
        without = replace(in_torch, branches=False, reasons=(*in_torch.reasons, reason))
        return convert(prepared, layout, without, compares=compares)
    warnings += _missing_golden_warnings(networks)
    return Converted(prepared, converted, networks, recorded, warnings)


def _missing_golden_warnings(networks: Sequence[Network]) -> tuple[str, ...]:
    """Warnings for the networks that no golden reached."""
    return tuple(
        f"no golden reaches {part.label}, so it was not compared: add inputs that do"
        " (manifest: goldens: FILE.npz)"
        for part in networks
        if not part.goldens
    )


def _conversion_warnings(
    prepared: Prepared, converted: Conversion | fallback.PartitionedConversion
) -> tuple[str, ...]:
    spec = prepared.spec
    return (
        *prepared.warnings,
        *_unknown_modules(prepared.source),
        *patterns.unknown_operators(spec, prepared.graph),
        *patterns.unmatched(spec, converted),
        *converted.warnings,
    )


def _networks(
    partitioned: fallback.PartitionedConversion,
    recorded: tuple[Goldens, ...],
    spec: ModelSpec,
    layout: str,
) -> Iterator[Network]:
    """The networks of the segments, then those inside branches, which an ensemble does not run."""
    for number, conversion in enumerate(partitioned.conversions):
        if conversion is not None:
            yield Network((number,), conversion, recorded[number])
    inner = []
    if layout != "ensemble":
        inner = list(branches.engines(partitioned))
    goldens = branches.record(partitioned, recorded, spec) if inner else {}
    for location, conversion in inner:
        yield Network(location, conversion, goldens.get(location, ()))


def own_half(spec: ModelSpec) -> ModelSpec:
    """The spec with the 16-bit format of the inputs where the precision is the other one."""
    if any(_bf16_of_float16(spec)):
        return replace(spec, precision="fp16")
    return spec


def _unused_calibration(spec: ModelSpec) -> Iterator[str]:
    """A warning for a calibration that nothing reads: only 8 bits need one, and the check of
    float16's range reads its files.
    """
    from builder.conversion import SCHEMES

    if spec.calibration is None or spec.precision in SCHEMES:
        return
    files = [item for item in spec.calibration.data if isinstance(item, Path)]
    if not (files and _keeps_in_float32(spec)):
        yield (
            f"calibration has no effect with precision {spec.precision}; set precision to one of"
            f" {', '.join(SCHEMES)}, or remove calibration"
        )


def _bf16_of_float16(spec: ModelSpec) -> Iterator[str]:
    """A warning if the precision is a 16-bit format and the inputs have the other one."""
    dtypes = {tensor.dtype for tensor in spec.inputs}
    if spec.precision == "bf16" and "float16" in dtypes:
        yield (
            "precision bf16 does not fit a float16 module, so it is built in fp16: write"
            " `precision: fp16`, or save module.float()"
        )


def _unknown_modules(source: Lowered) -> Iterator[str]:
    """A warning for names under fallback.modules that match nothing, which are most likely
    misspelled. A frozen file has no module names, but its nodes do.
    """
    requested = source.spec.fallback.modules
    modules = source.module.named_modules()
    names = {name for path, inner in modules for name in (path, inner.original_name)}
    missed = requested
    if not names.isdisjoint(requested):
        missed = tuple(name for name in requested if name not in names)
    if missed and (missed is not requested or not fallback.kept_nodes(source.graph)):
        known = [name for name in names if name]
        near = [
            manifest.did_you_mean(name, known, otherwise_list=False) for name in missed
        ]
        hint = ""
        if any(near):
            hint = f" ({'; '.join(filter(None, near))})"
        yield f"fallback.modules names no module of this model: {', '.join(missed)}{hint}"


def check_reference(converted: Converted) -> None:
    """Raise NetworkFailure if a network, evaluated on the CPU, differs from its goldens or cannot
    be evaluated.
    """
    for part in converted.networks:
        name = part.label if part.location else "the network"
        with _fails(part, converted):
            segment_goldens.check_reference(
                part.conversion,
                part.goldens,
                converted.prepared.spec,
                converted.prepared.source.module,
                of=name,
            )


def keep_in_float32(converted: Converted) -> Converted:
    """The networks with layers kept in float32 if their values exceed float16 on the goldens or on
    the manifest's calibration files, with a warning for each network (`keep_fp32: auto`, the
    default). Unchanged if the manifest lists layers, or the precision is not reduced.
    """
    spec = converted.prepared.spec
    if not _keeps_in_float32(spec):
        return converted

    beyond = _beyond_half(converted)
    networks = []
    warnings = list(converted.warnings)
    for part in converted.networks:
        conversion, overflow_warnings = quantization.overflow.with_layers_in_float32(
            part.conversion, beyond[part.location], keep_fp32=spec.keep_fp32
        )
        networks.append(replace(part, conversion=conversion))
        warnings += [f"{part.label}: {warning}" for warning in overflow_warnings]
    return replace(converted, networks=tuple(networks), warnings=tuple(warnings))


def _keeps_in_float32(spec: ModelSpec) -> bool:
    from builder.conversion import reduces

    return spec.keep_fp32_auto and reduces(spec.precision)


def _beyond_half(converted: Converted) -> dict[Location, list[Beyond]]:
    """The values of each network that exceed float16. The networks run on the calibration files one
    batch at a time, because the tensors of all batches may not fit in memory.
    """
    beyond: dict[Location, list[Beyond]] = {
        part.location: [] for part in converted.networks
    }
    if not any(
        quantization.overflow.has_half(part.conversion) for part in converted.networks
    ):
        return beyond
    by_location = {part.location: part.goldens for part in converted.networks}
    data = ([golden] for golden in converted.prepared.data)
    for goldens in (
        by_location,
        *(_inputs_of_networks(converted, golden) for golden in data),
    ):
        for part in converted.networks:
            batches = _batches(part.conversion, goldens.get(part.location, ()))
            beyond[part.location] += quantization.overflow.beyond_half(
                part.conversion.lowered, batches
            )
    return beyond


def _inputs_of_networks(
    converted: Converted, goldens: Sequence[Golden]
) -> Mapping[Location, Goldens]:
    """The inputs of each network, by its location, where the model's inputs are those of the
    goldens.
    """
    if converted.partitioned is None:
        return {(): tuple(goldens)}
    spec = converted.prepared.spec
    partitioned = converted.partitioned
    recorded = segment_goldens.record(
        partitioned.partition, goldens, spec, compares=False
    )
    inner = any(len(part.location) > 1 for part in converted.networks)
    by_location: dict[Location, Goldens] = {
        (number,): inputs_of_segment
        for number, inputs_of_segment in enumerate(recorded)
    }
    if inner:
        return {**by_location, **branches.record(partitioned, recorded, spec)}
    return by_location


def _batches(
    conversion: Conversion, goldens: Sequence[Golden]
) -> list[list[torch.Tensor]]:
    names = [str(spec.name) for spec in conversion.inputs]
    return [
        [parity.to_torch(golden.inputs[name]) for name in names] for golden in goldens
    ]


def check_plans(
    built: Built,
    options: BuildOptions,
    report: Callable[[str], None] = lambda step: None,
) -> Built:
    """Run every plan on the goldens of its network, in every profile that includes their shapes,
    and rebuild incorrect plans, with a warning for each step. `report` receives each step when it
    ends. Raises NetworkFailure if TensorRT builds no correct plan of a network. Nothing is run
    without a GPU and TensorRT (not RTX).
    """
    if not parity.plan_check.possible():
        return built
    converted = built.converted
    spec = converted.prepared.spec
    plans = dict(built.plans)
    networks = []
    warnings = list(converted.warnings)
    for part in converted.networks:
        with _fails(part, converted):
            correct = parity.plan_check.check(
                part.conversion,
                plans[part.location],
                part.goldens,
                segment_goldens.of_network(spec, part.conversion),
                options,
                report=report,
            )
        plans[part.location] = correct.plan
        networks.append(replace(part, conversion=correct.conversion))
        warnings += [f"{part.label}: {step}" for step in correct.steps]
    checked = replace(converted, networks=tuple(networks), warnings=tuple(warnings))
    return replace(built, converted=checked, plans=plans)


def build(converted: Converted, compile: Compile) -> Built:
    """Build the plan of every network. `compile` receives the conversion and its label. Raises
    NetworkFailure if TensorRT rejects a network.
    """
    plans = {}
    for part in converted.networks:
        with _fails(part, converted):
            plans[part.location] = compile(part.conversion, part.label)
    return Built(converted, plans)


def assemble(built: Built, order: Order) -> Checked:
    """Assemble the artifact in the layout of the order. Raises UsageError and PublishError."""
    from builder.pipeline import artifacts, layouts

    converted = built.converted
    prepared = built.converted.prepared
    artifact: ModelArtifact | EnsembleArtifact
    if converted.partitioned is None:
        (part,) = converted.networks
        plan = built.plans[part.location]
        artifact = artifacts.of_conversion(
            prepared.spec, part.conversion, plan, prepared.goldens, order.serve_as
        )
        layout = "single"
        reason = ""
    else:
        model = _split_model(built, converted.partitioned, order)
        artifact, reason = layouts.artifact(model, order.layout)
        layout = (
            "ensemble" if isinstance(artifact, triton.EnsembleArtifact) else "fused"
        )
    warnings = (
        *converted.warnings,
        *triton.lost_batches(artifact),
        *triton.config_warnings(artifact),
    )
    return Checked(built, artifact, layout, reason, warnings)


def _split_model(
    built: Built, partitioned: fallback.PartitionedConversion, order: Order
) -> SplitModel:
    """The model in segments, with the plans of the segments and of those inside branches."""
    from builder.pipeline.artifacts import SplitModel

    converted = built.converted
    prepared = built.converted.prepared
    count = len(partitioned.partition.segments)
    return SplitModel(
        prepared.spec,
        partitioned,
        tuple(built.plans.get((number,)) for number in range(count)),
        prepared.goldens,
        converted.segment_goldens,
        {location: plan for location, plan in built.plans.items() if len(location) > 1},
        order.serve_as,
        order.torch_steps,
    )


def publish(
    checked: Checked,
    out: Path,
    finish: Callable[[Path], None],
    compare: Callable[[Path, Path], None],
    stage: Path | None = None,
) -> Published:
    """Move the model into the repository `out`; see builder.triton.publish."""
    folder = triton.publish(
        checked.artifact, out, finish=finish, compare=compare, stage=stage
    )
    return Published(checked, folder)
