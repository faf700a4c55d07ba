"""What the triton room takes: one built model, its tensors, its recorded answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from builder.manifest.spec import ModelSpec, Profile

SERVE_AS = ("auto", "tensorrt_plan", "python")

Shape = tuple[int, ...]
Ranges = dict[str, tuple[Shape, Shape, Shape]]
"""The least, usual and greatest shape of every input in one optimization profile."""


@dataclass(frozen=True)
class IO:
    """One tensor of the model: `dtype` by torch's name, `shape` with the batch in it and -1 for a dynamic axis."""

    name: str
    dtype: str
    shape: Shape


@dataclass(frozen=True)
class Golden:
    """The original module's answer to one set of inputs; arrays have the module's dtypes and shapes.

    `name` is "p<profile>-min|opt|max|odd|row" or "user-<n>"; bfloat16 arrays are ml_dtypes.bfloat16.
    """

    name: str
    inputs: Mapping[str, NDArray[Any]]
    outputs: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class ModelArtifact:
    """Everything that becomes one folder of a model repository.

    `inputs` stand in the order of `spec.inputs`, `outputs` in the order of the lowered graph's results; `lowered` is
    the TorchScript archive of the lowered graph (flat tensors in, tuple of tensors out); `plan` None or empty: nothing
    was compiled.
    """

    spec: ModelSpec
    inputs: tuple[IO, ...]
    outputs: tuple[IO, ...]
    profiles: tuple[Profile, ...]
    plan: bytes | None
    plan_facts: Mapping[str, Any]
    lowered: bytes
    goldens: tuple[Golden, ...] = ()
    serve_as: str = "auto"
    notes: Mapping[str, str] = field(default_factory=dict)

    def ranges(self) -> tuple[Ranges, ...]:
        """For each profile the shapes of every input at min, opt and max."""
        return tuple(self._ranges(profile) for profile in self.profiles or ({},))

    def _ranges(self, profile: Profile) -> Ranges:
        pairs = zip(self.inputs, self.spec.inputs, strict=True)
        merged = ((io.name, spec, {**spec.dims, **profile}) for io, spec in pairs)
        return {name: (spec.at(dims, 0), spec.at(dims, 1), spec.at(dims, 2)) for name, spec, dims in merged}
