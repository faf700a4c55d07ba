"""Inputs of requests that leave out an optional input, and forward's own default for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from builder.errors import TrtBuildError
from builder.manifest import Default, ModelSpec, TensorSpec
from builder.parity.arrays import to_numpy, to_torch
from builder.parity.calling import arguments
from builder.parity.comparison import compare
from builder.parity.structure import leaves
from builder.triton import Golden

ALL = "defaults"
"""The last part of the name of a golden without any optional input."""


def filled(
    spec: TensorSpec, default: Default, sizes: Mapping[str, int]
) -> torch.Tensor:
    """The tensor that the server uses for the input, with the named axes of these sizes."""
    value = torch.tensor(default, dtype=getattr(torch, spec.dtype))
    return value.expand(spec.sized(sizes)).contiguous()


def sizes_of(
    specs: Sequence[TensorSpec], shapes: Mapping[str, Sequence[int]]
) -> dict[str, int]:
    """The sizes of the named axes in a request with inputs of these shapes, by input name."""
    return {
        axis: size
        for spec in specs
        for axis, size in zip(spec.shape, shapes.get(spec.name or "", ()), strict=False)
        if isinstance(axis, str)
    }


def variants(
    spec: ModelSpec, tensors: Sequence[torch.Tensor]
) -> Iterator[tuple[str, tuple[str, ...], list[torch.Tensor]]]:
    """For each optional input a request without it, and one without any: the golden's name, the
    omitted inputs and all tensors, with the defaults.
    """
    optional = tuple(spec.defaults)
    shapes = {
        input_spec.name or "": tensor.shape
        for input_spec, tensor in zip(spec.inputs, tensors, strict=True)
    }
    sizes = sizes_of(spec.inputs, shapes)
    requests: list[tuple[str, tuple[str, ...]]] = [
        (f"p0-without-{name}", (name,)) for name in optional
    ]
    if len(optional) > 1:
        requests.append((f"p0-{ALL}", optional))
    for golden, omitted in requests:
        values = list(tensors)
        for index, tensor_spec in enumerate(spec.inputs):
            if tensor_spec.name in omitted:
                default = spec.defaults[tensor_spec.name or ""]
                values[index] = filled(tensor_spec, default, sizes)
        yield golden, omitted, values


def _reproduces(
    module: Any, values: Mapping[str, Any], golden: Golden, spec: ModelSpec
) -> bool:
    """Whether forward gives the golden's outputs for the arguments `values`."""
    try:
        with torch.no_grad():
            results = [to_numpy(tensor) for _, tensor in leaves(module(**values))]
        pairs = zip(golden.outputs.items(), results, strict=True)
        outputs = {
            output: array.astype(stated.dtype) for (output, stated), array in pairs
        }
        return compare(outputs, golden, spec.tolerance, precision="fp32").passed
    except (RuntimeError, IndexError, torch.jit.Error, TrtBuildError, ValueError):
        return False


def other_default(module: Any, spec: ModelSpec, golden: Golden) -> str | None:
    """A warning if the module's forward has its own default for the omitted input of the golden,
    and gives other outputs with it.
    """
    (name,) = golden.omitted
    tensors = [
        to_torch(golden.inputs[tensor_spec.name or ""]).to(
            getattr(torch, tensor_spec.dtype)
        )
        for tensor_spec in spec.inputs
    ]
    values = arguments(module, spec.inputs, tensors, spec.constants) or {}
    schema = getattr(getattr(module, "forward", None), "schema", None)
    parameters = schema.arguments if schema else ()
    argument = {parameter.name: parameter for parameter in parameters}.get(name)
    if name not in values or argument is None or not argument.has_default_value():
        return None
    del values[name]
    if _reproduces(module, values, golden, spec):
        return None
    return (
        f"input {name!r} has default {spec.defaults[name]!r} in the manifest, and forward's own"
        f" default, {argument.default_value!r}, gives other outputs. Requests without the input use"
        " the manifest's default"
    )
