"""The builder flags that choose the precisions of a weakly typed network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.engine import capabilities
from builder.engine.flavor import trt
from builder.engine.network import has_half, has_int8
from builder.precisions import TABLE

if TYPE_CHECKING:
    from builder.conversion import Conversion


HALF_ALLOWED = tuple(
    entry.name for entry in TABLE if "fp16" in (entry.name, entry.unquantized)
)
"""Precisions in which the builder may use half wherever the policy allows it."""


def flags(conversion: Conversion) -> dict[str, Any]:
    """Polygraphy's arguments that allow half and int8; empty if the network is strongly typed.

    int8 is allowed if the network quantizes.
    """
    if capabilities.current().strongly_typed:
        return {}
    half = conversion.precision in HALF_ALLOWED or has_half(conversion.network)
    int8 = has_int8(conversion.network)
    # "incorrectly marked as an int8 node": an assertion fails if constraints apply beside int8
    constraints = None
    if half:
        constraints = "prefer" if int8 else "obey"
    return {"fp16": half, "int8": int8, "precision_constraints": constraints}


def share_profiles(config: Any) -> None:
    """Allow several execution contexts of a plan to use the same optimization profile: the
    instances of the Python runtime may share one engine. TensorRT 10 always allows it.
    """
    if hasattr(trt.PreviewFeature, "PROFILE_SHARING_0806"):
        feature = trt.PreviewFeature.PROFILE_SHARING_0806
        config.set_preview_feature(feature, True)  # noqa: FBT003
