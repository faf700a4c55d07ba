"""The operator harness: torch, the network's reference, the compiled plan and (with `-m gpu`) the
engine, compared.

    check("graph(%x : Tensor): %r : Tensor = aten::relu(%x) return (%r)", randn(2, 3))
    check(lambda x: x.relu(), randn(2, 3), dynamic={0: {0: "n"}})

Tolerances: integers, bools and data movement are compared exactly (the default of rtol = atol = 0
for those dtypes); floats within FLOAT_RTOL/FLOAT_ATOL unless the test states others and says why.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch

import builder
from builder.conversion import dtypes
from builder.conversion.sizes import inputs_of, kind_of
from builder.engine import (
    BuildOptions,
    capabilities,
    flavor,
    layer_type,
    typed_layers,
)
from tests.conversion import compiling, old
from tests.torchscript.saving import saved, traced

QUICK = BuildOptions(optimization_level=0)
"""Lets TensorRT time as few tactics as possible: the harness checks outputs, not speed."""

FLOAT_RTOL = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""A few ulp of one operation: 2^-23 is 1.2e-7 (float32, with room for another order of summation in
a handful of terms), 2^-10 is 9.8e-4 (float16), 2^-7 is 7.8e-3 (bfloat16).
"""
FLOAT_ATOL = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}

ENGINE_SLACK = 8
"""The factor on the tolerance for an engine. Its kernels use CUDA's fast intrinsics (a few ulp
each, CUDA programming guide, "Intrinsic functions") and sum in another order. TensorRT documents no
propagation of NaN, so NaN is not compared.
"""

LACKS = (
    " has no bfloat16",
    "computes floors and remainders of half tensors incorrectly",
    "has a loop of unknown length and a branch",
    "carries a value that no iteration reads",
    "depends on the result of another branch",
)
"""Reasons of refusals for which a test is skipped."""

Dynamic = Mapping[int, Mapping[int, str]]
"""For each input, the axes that are dynamic and their names; axes of one name are equal."""


def module_of(
    source: str | Callable[..., Any] | torch.nn.Module,
    inputs: Sequence[Any],
    trace: bool = False,
) -> Any:
    """A graph (IR text), or a scripted or traced module, as if loaded from a file."""
    if isinstance(source, str):
        return torch._C.parse_ir(textwrap.dedent(source))
    if isinstance(source, torch.jit.ScriptModule | torch._C.Graph):
        return source
    if not isinstance(source, torch.nn.Module):
        return traced(source, inputs)
    module = source.eval()
    if trace:
        return saved(torch.jit.trace(module, tuple(inputs), check_trace=False))
    return saved(torch.jit.script(module))


def dynamic_axes(axes: int) -> dict[int, dict[int, str]]:
    """Names for the batch axis and all spatial axes of the first input."""
    return {0: {0: "n"} | {axis + 2: f"s{axis}" for axis in range(axes)}}


def spec_of(
    tensor: torch.Tensor,
    axes: Mapping[int, str],
    spans: Mapping[str, tuple[int, int, int]],
) -> Any:
    """The TensorSpec of a sample: its named axes dynamic, the others static."""
    axes = {axis % max(tensor.dim(), 1): name for axis, name in axes.items()}
    shape = tuple(axes.get(axis, length) for axis, length in enumerate(tensor.shape))
    dims = {name: spans[name] for name in axes.values()}
    return builder.TensorSpec(
        str(tensor.dtype).removeprefix("torch."), shape, dims=dims
    )


def convert(
    source: Any,
    inputs: Sequence[torch.Tensor],
    params: Sequence[Any] = (),
    dynamic: Dynamic | None = None,
    spans: Mapping[str, tuple[int, int, int]] | None = None,
    trace: bool = False,
) -> builder.Conversion:
    """Convert with specs taken from the sample inputs; a dynamic axis ranges from 1 to twice its
    sample's size.
    """
    dynamic = dynamic or {}
    known = {
        name: (1, max(tensor.shape[axis], 1), 2 * max(tensor.shape[axis], 1))
        for index, axes in dynamic.items()
        for axis, name in axes.items()
        for tensor in [inputs[index]]
    }
    known.update(spans or {})
    specs = [
        spec_of(tensor, dynamic.get(index, {}), known)
        for index, tensor in enumerate(inputs)
    ]
    return builder.convert(module_of(source, inputs, trace), specs, params)


def check(
    source: Any,
    *inputs: torch.Tensor,
    params: Sequence[Any] = (),
    dynamic: Dynamic | None = None,
    spans: Mapping[str, tuple[int, int, int]] | None = None,
    more: Sequence[Sequence[torch.Tensor]] = (),
    rtol: float | None = None,
    atol: float | None = None,
    trace: bool = False,
    compile: bool = True,
    expected: Callable[..., Any] | None = None,
) -> builder.Conversion:
    """Convert `source`, evaluate it at `inputs` and at each of `more`, and compare with torch;
    compile the plan. `compile` allows the plan to be compiled; compiling.py decides for which
    networks it is. `expected` replaces the graph's own execution by torch as the expected output.
    Returns the conversion.
    """
    module = module_of(source, inputs, trace)
    conversion = _converted_or_skipped(module, inputs, params, dynamic, spans, trace)
    truth = expected or _truth(source, module, trace, conversion)
    for case in (inputs, *more):
        expected_outputs = _flat(truth(*case))
        _compare(
            builder.reference.run(conversion, case),
            expected_outputs,
            conversion,
            rtol,
            atol,
        )
    assert capabilities.current().strongly_typed or not old.refused(conversion.network)
    assert not unfinished_outputs(conversion.network)
    if compile and compiling.should_compile(conversion.network):
        plan = builder.build_engine(conversion, QUICK)
        assert len(plan) > 1000
        compiling.done(conversion.network)
        if flavor.name() == "tensorrt":
            _check_engine(plan, conversion, (inputs, *more), rtol, atol)
    return conversion


def layer_kinds(conversion: builder.Conversion) -> Counter[str]:
    """The network's layers by type."""
    network = conversion.network
    return Counter(kind_of(network.get_layer(i)) for i in range(network.num_layers))


def unfinished_outputs(network: Any) -> list[str]:
    """The outputs of a network that read a tensor of a conditional or a loop without its output
    layer. TensorRT documents no value for them.
    """
    scopes: dict[str, frozenset[str]] = {}
    for layer in typed_layers(network):
        kind = layer_type(layer)
        around = frozenset[str]().union(
            *(scopes.get(tensor.name, ()) for tensor in inputs_of(layer))
        )
        if kind in ("CONDITIONAL_INPUT", "CONDITIONAL_OUTPUT"):
            own = {f"if {layer.conditional.name}"}
            around = around | own if kind == "CONDITIONAL_INPUT" else around - own
        elif kind in ("RECURRENCE", "ITERATOR", "LOOP_OUTPUT"):
            own = {f"loop {layer.loop.name}"}
            around = around - own if kind == "LOOP_OUTPUT" else around | own
        for number in range(layer.num_outputs):
            scopes[layer.get_output(number).name] = around
    names = (network.get_output(index).name for index in range(network.num_outputs))
    return [name for name in names if scopes.get(name)]


def _truth(
    source: Any, module: Any, trace: bool, conversion: builder.Conversion
) -> Callable[..., Any]:
    """What computes the expected outputs: the module itself, not its lowered graph. A trace is
    valid only for the sizes of its sample, so the traced function or module is called instead.
    """
    if isinstance(source, str | torch._C.Graph):
        return conversion.lowered.run
    if isinstance(source, torch.nn.Module) and not trace:
        return module  # type: ignore[no-any-return]
    return source


def _converted_or_skipped(*arguments: Any) -> builder.Conversion:
    """The conversion. The test is skipped if 8.6 lacks bfloat16 or exact remainders of halves."""
    try:
        return convert(*arguments)
    except builder.TrtBuildError as error:
        if any(reason in str(error) for reason in LACKS):
            pytest.skip(error.message)
        raise


def _check_engine(
    plan: bytes,
    conversion: Any,
    cases: Sequence[Sequence[torch.Tensor]],
    rtol: Any,
    atol: Any,
) -> None:
    from builder.engine.run import Engine

    with Engine(plan) as engine:
        for case in cases:
            if not any(t.is_floating_point() and t.isnan().any() for t in case):
                # TensorRT 8.6 lists them in a different order
                outputs = dict(zip(engine.outputs, engine(*case), strict=True))
                got = [outputs[name] for name in conversion.outputs]
                _compare(
                    got,
                    list(conversion.lowered.run(*case)),
                    conversion,
                    rtol,
                    atol,
                    slack=ENGINE_SLACK,
                )


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    return [tensor for item in values for tensor in _flat(item)]


def carried(dtype: torch.dtype) -> torch.dtype:
    """The dtype of an output that has torch's `dtype` in the module (docs/engine.md). No flavor has
    float64, and TensorRT 8.6 has int32 instead of int64 and small integers.
    """
    return torch.float32 if dtype == torch.float64 else dtypes.endpoint(dtype, "OUTPUT")


def _compare(
    got: Sequence[Any],
    expected_outputs: Sequence[Any],
    conversion: Any,
    rtol: Any,
    atol: Any,
    slack: float = 1,
) -> None:
    assert len(got) == len(expected_outputs)
    for output, truth in zip(got, expected_outputs, strict=True):
        truth = truth.to(carried(truth.dtype))
        exact = not truth.dtype.is_floating_point
        torch.testing.assert_close(
            output.cpu(),
            truth,
            rtol=0
            if exact
            else slack * (FLOAT_RTOL[truth.dtype] if rtol is None else rtol),
            atol=0
            if exact
            else slack * (FLOAT_ATOL[truth.dtype] if atol is None else atol),
            equal_nan=True,
        )
