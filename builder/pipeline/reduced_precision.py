"""What the manifest wants of fewer bits: products in 8 bits by calibration, endpoints in
float16.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from builder.errors import UsageError
from builder.manifest import ModelSpec, place
from builder.pipeline import calibration, patterns

if TYPE_CHECKING:
    from builder.lowering import LoweredGraph
    from builder.quantization import Quantized
    from builder.triton import Golden

FIX = (
    "calibration: {data: [inputs.npz]}, inputs as the model will meet them; [goldens] takes those"
    " of the goldens; or train the module with fake quantization"
)


@dataclass(frozen=True)
class Reduced:
    """The model as it is converted and served; `quantized` None where its precision has no 8
    bits.
    """

    spec: ModelSpec
    lowered: LoweredGraph
    quantized: Quantized | None

    @property
    def warnings(self) -> tuple[str, ...]:
        """That nothing was quantized, and why; patterns to skip that name no product."""
        if self.quantized is None:
            return ()
        return (*_idle(self.spec, self.quantized), *_nothing(self.quantized))


def _nothing(found: Quantized) -> Iterator[str]:
    if not any(one.quantized for one in found.layers):
        reasons = dict.fromkeys(one.reason for one in found.layers)
        yield f"nothing computes in 8 bits: {'; '.join(reasons) or 'the model multiplies nothing'}"


def _idle(spec: ModelSpec, found: Quantized) -> Iterator[str]:
    skip = spec.calibration.skip if spec.calibration else ()
    if missed := patterns.idle(skip, [one.name for one in found.layers]):
        yield (
            f"calibration.skip names no product of this model: {', '.join(missed)} (`trt-build"
            " check` lists them)"
        )


def wanted(spec: ModelSpec) -> bool:
    """Whether there is anything to do."""
    from builder.conversion import SCHEMES

    return spec.precision in SCHEMES or spec.io != "module"


def reduced(
    spec: ModelSpec, lowered: LoweredGraph, names: Sequence[str], goldens: Sequence[Golden]
) -> Reduced:
    """The lowered graph with quantizing nodes and casts at its borders, as the spec asks; goldens
    as recorded for it. `names` are the outputs'.

    Raises UsageError where 8 bits are asked for and nothing says the ranges.
    """
    from builder.conversion import SCHEMES

    found = quantized(spec, lowered, goldens) if spec.precision in SCHEMES else None
    spec, lowered = _endpoints(spec, found.lowered if found else lowered, names, goldens)
    return Reduced(spec, lowered, found)


def quantized(spec: ModelSpec, lowered: LoweredGraph, goldens: Sequence[Golden]) -> Quantized:
    """By calibration; a module that brings its own fake quantization may go without."""
    from builder import quantization

    chosen = spec.calibration
    if chosen is None:
        own = quantization.own(lowered)
        if own is None:
            message = (
                f"precision {spec.precision} needs calibration data: nothing in the model says its"
                " ranges"
            )
            raise UsageError(message, where=place(spec, "precision"), fix=FIX)
        return own
    return quantization.quantize(
        lowered,
        calibration.batches(spec, chosen, goldens),
        spec.precision,
        method=chosen.method,
        percentile=chosen.percentile,
        skip=(*chosen.skip, *spec.keep_fp32),
    )


def _endpoints(
    spec: ModelSpec, lowered: LoweredGraph, names: Sequence[str], goldens: Sequence[Golden]
) -> tuple[ModelSpec, LoweredGraph]:
    """Casts at the borders; which outputs are narrowed, the goldens tell that were recorded with
    the same spec.
    """
    from builder.lowering import endpoints

    if spec.io != "fp16":
        return spec, lowered
    kept = {state.output for state in spec.state}
    inputs = {at for at, tensor in enumerate(spec.inputs) if tensor.name in spec.narrowed}
    dtypes = {name: str(array.dtype) for one in goldens for name, array in one.outputs.items()}
    half = {
        at for at, name in enumerate(names) if dtypes.get(name) == "float16" and name not in kept
    }
    served = [
        replace(t, dtype="float16") if at in inputs else t for at, t in enumerate(spec.inputs)
    ]
    return replace(spec, inputs=tuple(served)), endpoints.half(lowered, inputs, half)


def as_data(found: Quantized | None) -> dict[str, Any] | None:
    """JSON-able: the summary, and every product with what became of it; JSON has no number for an
    SQNR without end.
    """
    if found is None:
        return None
    layers = [
        {**vars(one), "sqnr": one.sqnr if math.isfinite(one.sqnr or 0.0) else None}
        for one in found.layers
    ]
    return {"summary": found.summary, "layers": layers}
