"""A whole network, scripted, traced or exported, at several shapes: torch against the network's
reference; the plan compiles.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import builder
from tests.conversion.harness import spec_of

Sizes = Mapping[str, int]
Axes = Mapping[int, Mapping[int, str]]


@dataclass(frozen=True)
class Network:
    """What to build, and at which sizes of its named axes to compare: the first is the sample that
    traces it.
    """

    make: Callable[[], torch.nn.Module]
    inputs: Callable[[Sizes], tuple[torch.Tensor, ...]]
    axes: Axes
    cases: tuple[Sizes, ...]
    unscriptable: str = ""
    """Why torch.jit.script refuses the module; then it is only traced."""
    prepare: Callable[[torch.nn.Module], torch.nn.Module] = field(
        default=lambda module: module
    )
    """What torch.jit.script needs done to the module first."""


@dataclass(frozen=True)
class Measured:
    """Layers, seconds of each part, and the greatest error relative to the greatest magnitude of
    that output.
    """

    layers: int
    convert_seconds: float
    build_seconds: float | None
    errors: tuple[float, ...] = field(default=())
    beside: dict[str, float] = field(default_factory=dict)
    """Of an exported network: seconds of CPU time to convert it, layers and seconds of the traced
    module.
    """


def eager_of(network: Network, shift: float = 0.0) -> torch.nn.Module:
    """The network with random weights of a fixed seed, in evaluation mode; `shift` is that of its
    batch norms.
    """
    torch.manual_seed(0)
    return trained(network.make().eval(), network.inputs(network.cases[0]), shift)


def module_of(network: Network, mode: str) -> torch.jit.ScriptModule:
    """eager_of's module, scripted or traced."""
    return scripted_of(network, eager_of(network), mode)


def scripted_of(
    network: Network, module: torch.nn.Module, mode: str
) -> torch.jit.ScriptModule:
    """The module scripted (which changes it, where the network has to `prepare` it) or traced."""
    if mode == "scripted":
        return torch.jit.script(network.prepare(module))  # type: ignore[no-any-return]
    with torch.no_grad():
        return torch.jit.trace(
            module, network.inputs(network.cases[0]), check_trace=False
        )  # type: ignore[no-any-return]


def exported_of(
    network: Network, module: torch.nn.Module
) -> torch.export.ExportedProgram:
    """The module exported with its dynamic axes, each over the range of the cases. Axes of one name
    become one size where the program needs that.
    """
    # torch takes a size of 1 in the sample for one that never varies
    sample = network.inputs(max(network.cases, key=lambda case: min(2, *case.values())))
    shapes: Any = tuple(_dims(network, index) for index in range(len(sample)))
    kinds = [p.kind for p in inspect.signature(module.forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        shapes = (shapes,)
    try:
        with torch.no_grad():
            return torch.export.export(module, sample, dynamic_shapes=shapes)
    except Exception as error:  # torch raises errors of many classes
        raise NotExported(reason_of(error)) from error


def _dims(network: Network, index: int) -> dict[int, Any]:
    """The dynamic axes of one input. A range up to 2 is one size for torch, which takes 2 as the
    least of every size that varies.
    """
    dims = {}
    for axis, name in network.axes.get(index, {}).items():
        sizes = [case[name] for case in network.cases]
        dims[axis] = torch.export.Dim.DYNAMIC(min=min(sizes), max=max(3, *sizes))
    return dims


class NotExported(Exception):
    """torch.export refuses a network; the message is torch's reason."""


def reason_of(error: Exception) -> str:
    """The line of torch's message that names the cause."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip(" -")]
    words = ("specialized it to be a constant", "tracing inferred a static shape")
    cause = next((line for line in lines if any(word in line for word in words)), None)
    return cause.partition(". If")[0] if cause else (lines or [type(error).__name__])[0]


def trained(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], shift: float = 0.0
) -> torch.nn.Module:
    """The module with batch norms as training leaves them: statistics of a real batch, weights and
    biases of their own, the latter around `shift`.

    Fresh ones do nothing (mean 0, variance 1), and let the activations of a deep network grow until
    rounding decides.
    """
    norms = [
        m
        for m in module.modules()
        if isinstance(m, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d)
    ]
    with torch.no_grad():
        for norm in (n for n in norms if n.affine):
            norm.weight.uniform_(0.5, 1.5)
            norm.bias.normal_(shift, 0.2)
        for norm in norms:
            norm.momentum = 1.0
            norm.train()
        if norms:
            module(*inputs)
    return module.eval()


def specs_of(network: Network) -> list[builder.TensorSpec]:
    """One spec an input; each named axis ranges over the cases."""
    names = network.cases[0]
    spans = {n: tuple(sorted(case[n] for case in network.cases)) for n in names}
    spans = {n: (s[0], s[len(s) // 2], s[-1]) for n, s in spans.items()}
    samples = network.inputs(network.cases[0])
    return [
        spec_of(sample, network.axes.get(i, {}), spans)
        for i, sample in enumerate(samples)
    ]  # type: ignore[arg-type]


def measure(network: Network, mode: str, compile: bool = True) -> Measured:
    """Convert, compile and compare at every case. Raises what the parts raise."""
    module: Any
    program: Any
    beside: dict[str, float] = {}
    if mode == "exported":
        program = exported_of(network, eager_of(network))
        module = program.module()
        beside = conversion_times(network, program)
    else:
        program = module = module_of(network, mode)
    start = time.perf_counter()
    conversion = builder.convert(program, specs_of(network))
    converted = time.perf_counter()
    if compile:
        builder.build_engine(conversion)
    built = time.perf_counter()
    cases = range(len(network.cases))
    errors = tuple(
        _error(conversion, module, inputs_of(network, index)) for index in cases
    )
    seconds = built - converted if compile else None
    return Measured(
        conversion.network.num_layers, converted - start, seconds, errors, beside
    )


def inputs_of(network: Network, index: int) -> tuple[torch.Tensor, ...]:
    """The inputs of one case, the same in all modes: near-equal scores of a topk are decided by
    rounding.
    """
    torch.manual_seed(1 + index)
    return network.inputs(network.cases[index])


CALLS = 10
"""The conversions of each format that are timed."""


def conversion_times(network: Network, program: Any) -> dict[str, float]:
    """Layers of the traced module, and CPU seconds of both formats, converted in turns: the least
    of some calls after a first one.
    """
    traced, specs = module_of(network, "traced"), specs_of(network)
    found: dict[str, list[float]] = {"cpu": [], "traced_cpu": []}
    layers = 0
    for _ in range(CALLS + 1):
        for key, module in (("traced_cpu", traced), ("cpu", program)):
            start = time.process_time()
            conversion = builder.convert(module, specs)
            found[key].append(time.process_time() - start)
            if module is traced:
                layers = conversion.network.num_layers
    least = {key: min(seconds[1:]) for key, seconds in found.items()}
    return least | {"traced_layers": layers, "calls": CALLS}


def _error(conversion: Any, module: Any, inputs: Sequence[torch.Tensor]) -> float:
    with torch.no_grad():
        wanted = flat(module(*inputs))
    got = builder.reference.run(conversion, list(inputs))
    assert len(got) == len(wanted)
    return max(relative(a, b) for a, b in zip(got, wanted, strict=True))


def own_error(network: Network) -> float:
    """How far torch in float32 is from torch in float64 at the worst case: what these weights make
    of rounding.
    """
    largest = 0.0
    for index in range(len(network.cases)):
        module = eager_of(network)
        inputs = inputs_of(network, index)
        with torch.no_grad():
            single = flat(module(*inputs))
            double = flat(
                module.double()(
                    *(t.double() if t.is_floating_point() else t for t in inputs)
                )
            )
        largest = max(
            largest, *(relative(a, b) for a, b in zip(single, double, strict=True))
        )
    return largest


def flat(value: Any) -> list[torch.Tensor]:
    """The tensors of a nested output, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    return [tensor for item in values if item is not None for tensor in flat(item)]


def relative(output: torch.Tensor, truth: torch.Tensor) -> float:
    """The greatest difference over the greatest magnitude; infinite for another shape, other
    integers, and NaN.
    """
    if output.shape != truth.shape or not bool(
        output.isfinite().all() and truth.isfinite().all()
    ):
        return float("inf")
    if not truth.is_floating_point():
        return 0.0 if torch.equal(output, truth.to(output.dtype)) else float("inf")
    scale = float(truth.abs().max())
    assert scale > 0, "an output of zeros shows nothing"
    return float((output - truth).abs().max()) / scale
