"""From a model's spec to its module, and on to the lowered graph and the network: what every
command does alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from builder.errors import InPlaceError
from builder.manifest.spec import ModelSpec, Profile, TensorSpec

if TYPE_CHECKING:
    from builder.conversion import Conversion
    from builder.lowering import LoweredGraph


def load(spec: ModelSpec) -> Any:
    """The ScriptModule of the spec's file. Raises ModelFileError."""
    from builder import torchscript

    return torchscript.load(spec.path, spec.module, libraries=spec.libraries)


def lower(module: Any, spec: ModelSpec, **more: Any) -> LoweredGraph:
    """The lowered graph as the spec asks for it; `more` goes to builder.lower. Writes in place that
    values cannot tell stay as they are, for torch alone, unless `fallback.require_full`. Raises
    LoweringError.
    """
    from builder import lowering

    optional = [tensor.name for tensor in spec.inputs if tensor.name]
    try:
        return lowering.lower(
            module,
            specs=spec.inputs,
            unroll_limit=spec.unroll_limit,
            fallback_modules=spec.fallback.modules,
            optional_inputs=optional,
            constants=spec.constants,
            **more,
        )
    except InPlaceError as reason:
        if spec.fallback.require_full:
            raise
        return lowering.as_written(
            module,
            reason,
            optional_inputs=optional,
            constants=spec.constants,
            specs=spec.inputs,
        )


def convert(
    lowered: LoweredGraph,
    spec: ModelSpec,
    names: Sequence[str] | None,
    inputs: Sequence[TensorSpec] | None = None,
    profiles: Sequence[Profile] | None = None,
) -> Conversion:
    """The network in the spec's precision, its outputs called `names`; a segment has its own
    `inputs` and `profiles`.

    Raises UnsupportedOperators and ConversionError.
    """
    from builder import conversion

    return conversion.convert(
        lowered,
        spec.inputs if inputs is None else inputs,
        precision=spec.precision,
        keep_fp32=spec.keep_fp32,
        profiles=spec.profiles if profiles is None else profiles,
        output_names=names,
    )
