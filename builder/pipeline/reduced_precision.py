"""Reduced precision by the manifest: products in 8 bits by calibration, inputs and outputs in
float16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from builder import lowering
from builder.errors import UsageError
from builder.manifest import ModelSpec, manifest_location
from builder.pipeline import calibration, patterns

if TYPE_CHECKING:
    from builder.lowering import LoweredGraph
    from builder.quantization import Quantized
    from builder.triton import Golden

FIX = (
    "use calibration: {data: [inputs.npz]} with realistic inputs; [goldens] uses the inputs of the "
    "goldens; or train the module with fake quantization"
)


@dataclass(frozen=True)
class Reduced:
    """The model in the form for conversion and serving. `quantized` is None without 8-bit
    precision.
    """

    spec: ModelSpec
    lowered: LoweredGraph
    quantized: Quantized | None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings: nothing was quantized, with the reason; patterns of `skip` that match no
        product.
        """
        if self.quantized is None:
            return ()
        return (
            *_unmatched_skips(self.spec, self.quantized),
            *_nothing_quantized(self.quantized),
        )


def _nothing_quantized(quantization: Quantized) -> Iterator[str]:
    if not any(layer.quantized for layer in quantization.layers):
        reasons = dict.fromkeys(layer.reason for layer in quantization.layers)
        yield f"nothing is computed in 8 bits: {'; '.join(reasons) or 'it has no products'}"


def _unmatched_skips(spec: ModelSpec, quantization: Quantized) -> Iterator[str]:
    skip = spec.calibration.skip if spec.calibration else ()
    if missed := patterns.idle(skip, [layer.name for layer in quantization.layers]):
        yield (
            f"calibration.skip names no product of this model: {', '.join(missed)} (`trt-build"
            " check` lists them)"
        )


def is_needed(spec: ModelSpec) -> bool:
    """Whether the spec needs quantization or casts."""
    from builder.conversion import SCHEMES

    return spec.precision in SCHEMES or spec.io != "module"


def reduced(
    spec: ModelSpec,
    lowered: LoweredGraph,
    names: Sequence[str],
    goldens: Sequence[Golden],
) -> Reduced:
    """The lowered graph with quantizing nodes, and casts at its inputs and outputs, as in the spec.

    `names` are the output names. Raises UsageError if 8 bits are requested without ranges.
    """
    from builder.conversion import SCHEMES

    quantization = None
    if spec.precision in SCHEMES:
        quantization = quantized(spec, lowered, goldens)
    spec, lowered = _endpoints(
        spec, quantization.lowered if quantization else lowered, names, goldens
    )
    return Reduced(spec, lowered, quantization)


def quantized(
    spec: ModelSpec, lowered: LoweredGraph, goldens: Sequence[Golden]
) -> Quantized:
    """Quantize by calibration, which a module with fake quantization does not need."""
    from builder import quantization

    chosen = spec.calibration
    if chosen is None:
        trained = quantization.trained_scales(lowered)
        if trained is None:
            message = (
                f"precision {spec.precision} requires calibration data: the"
                " model has no ranges"
            )
            raise UsageError(
                message, where=manifest_location(spec, "precision"), fix=FIX
            )
        return trained
    return quantization.quantize(
        lowered,
        calibration.of_ranges(spec, chosen, goldens),
        spec.precision,
        method=chosen.method,
        percentile=chosen.percentile,
        skip=(*chosen.skip, *spec.keep_fp32),
    )


def _endpoints(
    spec: ModelSpec,
    lowered: LoweredGraph,
    names: Sequence[str],
    goldens: Sequence[Golden],
) -> tuple[ModelSpec, LoweredGraph]:
    """Casts at the inputs and outputs. The goldens, recorded with the same spec, determine which
    outputs are narrowed.
    """
    if spec.io != "fp16":
        return spec, lowered
    state_outputs = {state.output for state in spec.state}
    inputs = {
        at for at, tensor in enumerate(spec.inputs) if tensor.name in spec.narrowed
    }
    dtypes = {
        name: str(array.dtype)
        for golden in goldens
        for name, array in golden.outputs.items()
    }
    half = {
        at
        for at, name in enumerate(names)
        if dtypes.get(name) == "float16" and name not in state_outputs
    }
    served = [
        replace(tensor, dtype="float16") if at in inputs else tensor
        for at, tensor in enumerate(spec.inputs)
    ]
    return replace(spec, inputs=tuple(served)), lowering.endpoints.half(
        lowered, inputs, half
    )


def as_data(quantization: Quantized | None) -> dict[str, Any] | None:
    """JSON data: the summary, and every product with its result. An infinite SQNR is None."""
    if quantization is None:
        return None
    layers = [
        {
            **vars(layer),
            "sqnr": layer.sqnr if math.isfinite(layer.sqnr or 0.0) else None,
        }
        for layer in quantization.layers
    ]
    return {"summary": quantization.summary, "layers": layers}
