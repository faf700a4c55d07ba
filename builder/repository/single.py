"""A model that one engine runs whole, as an artifact."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from builder.manifest.spec import ModelSpec

if TYPE_CHECKING:
    from builder.conversion import Conversion
    from builder.engine import Plan
    from builder.triton import IO, Golden, ModelArtifact


def artifact(
    spec: ModelSpec, conversion: Conversion, plan: Plan, goldens: tuple[Golden, ...], serve_as: str
) -> ModelArtifact:
    """The conversion and its plan, with the tensors that the network really has."""
    from builder import triton
    from builder.repository import mixing, rows

    graph = conversion.lowered.graph
    return triton.ModelArtifact(
        spec=replace(spec, inputs=conversion.inputs),
        inputs=endpoints(conversion.network, "input"),
        outputs=endpoints(conversion.network, "output"),
        profiles=conversion.profiles,
        plan=plan.data,
        plan_facts=plan.facts,
        lowered=saved(conversion.lowered),
        goldens=goldens,
        serve_as=serve_as,
        mixes=mixing.decision_on_data(graph) or rows.one_for_all(graph),
    )


def endpoints(network: Any, side: str) -> tuple[IO, ...]:
    """The network's inputs or outputs (`side`: "input", "output") as the repository describes
    them.
    """
    from builder.conversion import dtypes
    from builder.triton import IO

    count, get = (getattr(network, f"num_{side}s"), getattr(network, f"get_{side}"))
    tensors = [get(i) for i in range(count)]
    return tuple(
        IO(t.name, str(dtypes.from_trt(t.dtype)).removeprefix("torch."), tuple(t.shape))
        for t in tensors
    )


def saved(lowered: Any) -> bytes:
    """The bytes of the TorchScript file of a LoweredGraph."""
    buffer = io.BytesIO()
    lowered.save(buffer)
    return buffer.getvalue()
