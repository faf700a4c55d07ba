"""Compare a whole network, scripted, traced or exported, at several shapes: torch with the
reference of the network, whose plan is also compiled.
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
    """A network, and the sizes of its named axes to compare at. The first case is the sample for
    tracing.
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
    """A change of the module that torch.jit.script requires."""


@dataclass(frozen=True)
class Measured:
    """Layers, the seconds of each step, and the largest error relative to the largest value of that
    output.
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
    """The module of eager_of, scripted or traced."""
    return scripted_of(network, eager_of(network), mode)


def scripted_of(
    network: Network, module: torch.nn.Module, mode: str
) -> torch.jit.ScriptModule:
    """The module scripted (`prepare` may change it first) or traced."""
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
    # torch treats a size of 1 in the sample as static
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
    """The dynamic axes of one input. torch treats a range up to 2 as static, because 2 is its
    smallest dynamic size.
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
    """The module with batch norms as after training: statistics of a real batch, and weights and
    biases around 1 and `shift`. Fresh batch norms change nothing (mean 0, variance 1), so the
    activations of a deep network would grow until rounding decides the output.
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
    """One spec for each input; the range of each named axis is that of the cases."""
    names = network.cases[0]
    spans = {n: tuple(sorted(case[n] for case in network.cases)) for n in names}
    spans = {n: (s[0], s[len(s) // 2], s[-1]) for n, s in spans.items()}
    samples = network.inputs(network.cases[0])
    return [
        spec_of(sample, network.axes.get(i, {}), spans)
        for i, sample in enumerate(samples)
    ]  # type: ignore[arg-type]


def measure(network: Network, mode: str, compile: bool = True) -> Measured:
    """Convert, compile and compare at every case. Raises the errors of these steps."""
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
    """The inputs of one case, equal in all modes, because rounding may decide a topk of nearly
    equal scores.
    """
    torch.manual_seed(1 + index)
    return network.inputs(network.cases[index])


CALLS = 10
"""The conversions of each format that are timed."""


def conversion_times(network: Network, program: Any) -> dict[str, float]:
    """Layers of the traced module, and CPU seconds of both formats: the minimum of several
    alternate calls after a warm-up.
    """
    traced, specs = module_of(network, "traced"), specs_of(network)
    seconds_by_format: dict[str, list[float]] = {"cpu": [], "traced_cpu": []}
    layers = 0
    for _ in range(CALLS + 1):
        for key, module in (("traced_cpu", traced), ("cpu", program)):
            start = time.process_time()
            conversion = builder.convert(module, specs)
            seconds_by_format[key].append(time.process_time() - start)
            if module is traced:
                layers = conversion.network.num_layers
    least = {key: min(seconds[1:]) for key, seconds in seconds_by_format.items()}
    return least | {"traced_layers": layers, "calls": CALLS}


def _error(conversion: Any, module: Any, inputs: Sequence[torch.Tensor]) -> float:
    with torch.no_grad():
        expected = flat(module(*inputs))
    got = builder.reference.run(conversion, list(inputs))
    assert len(got) == len(expected)
    return max(relative(a, b) for a, b in zip(got, expected, strict=True))


def own_error(network: Network) -> float:
    """The largest error of torch in float32 compared with float64: how much these weights amplify
    rounding.
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
    """The largest difference relative to the largest value; infinite for another shape, different
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
