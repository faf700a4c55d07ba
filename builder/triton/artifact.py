"""The input of this package: one built model, its tensors, its recorded answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from builder.manifest import ModelSpec, Profile

if TYPE_CHECKING:
    from builder.triton.padding import Padding

Shape = tuple[int, ...]
Ranges = dict[str, tuple[Shape, Shape, Shape]]
"""The least, usual and greatest shape of every input in one optimization profile."""


@dataclass(frozen=True)
class IO:
    """One tensor of the model: `dtype` by torch's name, `shape` with the batch in it and -1 for a
    dynamic axis.
    """

    name: str
    dtype: str
    shape: Shape


@dataclass(frozen=True)
class Golden:
    """The original module's answer to one set of inputs; arrays have the module's dtypes and
    shapes.

    `name` is "p<profile>-min|opt|max|odd|row|rolled", "p0-reach<n>" or "user-<n>"; bfloat16 arrays
    are ml_dtypes.bfloat16.
    """

    name: str
    inputs: Mapping[str, NDArray[Any]]
    outputs: Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class SegmentFiles:
    """One segment of a fused model: `kind` "tensorrt" or "torch", the TorchScript archive of its
    graph, and for TensorRT its plan. `inputs` and `outputs` are tensors with names that are unique
    in the model, in the graph's order; `ranges` the shapes of a plan's inputs in each profile.
    """

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    lowered: bytes
    plan: bytes | None = None
    plan_facts: Mapping[str, Any] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Of a plan's tensors: the dtype that the other segments expect, by torch's name."""
    ranges: tuple[Ranges, ...] = ()
    parts: tuple[SegmentFiles | BranchFiles, ...] = ()
    """What runs in place of the segment's own graph, which is not written then."""


@dataclass(frozen=True)
class BranchFiles:
    """A data-dependent branch with two blocks: `condition` is the archive of a graph from the
    tensors `reads` to one bool tensor, true for the first of `blocks`. `inputs` are what it and the
    blocks read, `outputs` what each block makes.
    """

    condition: bytes
    reads: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    blocks: tuple[tuple[SegmentFiles, ...], tuple[SegmentFiles, ...]]


@dataclass(frozen=True)
class ModelArtifact:
    """Everything that becomes one folder of a model repository.

    `inputs` stand in the order of `spec.inputs`, `outputs` in the order of the lowered graph's
    results; `lowered` is the TorchScript archive of the lowered graph (flat tensors in, tuple of
    tensors out); `plan` None or empty: nothing was compiled. `serve_as` "pytorch_libtorch" serves
    `lowered` by Triton's PyTorch backend. Where there are `segments`, they take the place of both.
    `step_of` names the ensemble that the model is an internal step of.
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
    segments: tuple[SegmentFiles, ...] = ()
    step_of: str | None = None
    ensemble_names: Mapping[str, str] = field(default_factory=dict)
    """Of a step: the ensemble's name of a tensor, if the step requires another name (INPUT__0).
    """
    padding: Padding | None = None
    """How requests of different lengths are joined, where the goldens have confirmed it."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """By the name of an output that may be None, the segments' output that is true where it is a
    tensor. A response has no flags, and leaves out what is None.
    """
    unknown: Mapping[str, str] = field(default_factory=dict)
    """As `flags`, of outputs that are None in every golden: the endpoint does not have them, and a
    request for which one is a tensor fails.
    """
    too_long: Mapping[str, str] = field(default_factory=dict)
    """By the name of a list, the segments' output that is true where the list is longer than
    `max_lengths` declares: such a request fails.
    """
    mixes: str | None = None
    """Why requests must not be joined to a batch, where the model's graph shows it and a golden may
    not.
    """

    def client_inputs(self) -> tuple[IO, ...]:
        """The inputs of a request: all except state that the server keeps."""
        kept = {state.input for state in self.spec.server_state}
        return tuple(io for io in self.inputs if io.name not in kept)

    def client_outputs(self) -> tuple[IO, ...]:
        """The outputs of a response."""
        kept = {state.output for state in self.spec.server_state}
        return tuple(io for io in self.outputs if io.name not in kept)

    def ranges(self) -> tuple[Ranges, ...]:
        """For each profile the shapes of every input at min, opt and max."""
        return tuple(self._ranges(profile) for profile in self.profiles or ({},))

    def _ranges(self, profile: Profile) -> Ranges:
        pairs = zip(self.inputs, self.spec.inputs, strict=True)
        merged = ((io.name, spec, {**spec.dims, **profile}) for io, spec in pairs)
        return {
            name: (spec.at(dims, 0), spec.at(dims, 1), spec.at(dims, 2))
            for name, spec, dims in merged
        }


@dataclass(frozen=True)
class EnsembleArtifact:
    """One model as a Triton ensemble: `steps` in running order; a tensor has one name wherever it
    stands, so that the steps fit by name. `inputs` and `outputs` are the model's; goldens are the
    whole's, each step has its own.
    """

    spec: ModelSpec
    inputs: tuple[IO, ...]
    outputs: tuple[IO, ...]
    profiles: tuple[Profile, ...]
    steps: tuple[ModelArtifact, ...]
    goldens: tuple[Golden, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
