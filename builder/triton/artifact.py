"""The input of this package: a built model with its tensors and goldens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from builder.manifest import ModelSpec, Profile

if TYPE_CHECKING:
    from builder.triton.padding import Padding

Arrays = Mapping[str, NDArray[Any]]
Shape = tuple[int, ...]
Ranges = dict[str, tuple[Shape, Shape, Shape]]
"""The minimum, optimum and maximum shape of every input in one optimization profile."""


@dataclass(frozen=True)
class IO:
    """A tensor of the model. `dtype` is torch's name; `shape` includes the batch, with -1 for a
    dynamic axis.
    """

    name: str
    dtype: str
    shape: Shape


@dataclass(frozen=True)
class Golden:
    """The original module's outputs for one set of inputs. Arrays have the module's dtypes and
    shapes.

    `name` is "p<profile>-min|opt|max|odd|row|rolled", "p0-reach<n>", "p0-without-<input>" or
    "user-<n>"; bfloat16 arrays are ml_dtypes.bfloat16.
    """

    name: str
    inputs: Arrays
    outputs: Arrays
    omitted: tuple[str, ...] = ()
    """Optional inputs that the request leaves out. `inputs` has their defaults."""

    def changed(self, change: Callable[[Arrays], Arrays]) -> Golden:
        """The golden with `change` applied to its inputs and to its outputs."""
        return replace(self, inputs=change(self.inputs), outputs=change(self.outputs))


@dataclass(frozen=True)
class SegmentFiles:
    """One segment of a fused model.

    `kind` is "tensorrt" or "torch". The segment has the TorchScript archive of its graph, and its
    plan for TensorRT. `inputs` and `outputs` are tensors in the graph's order, with names that are
    unique in the model. `ranges` has the shapes of a plan's inputs in each profile.
    """

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    lowered: bytes
    plan: bytes | None = None
    plan_facts: Mapping[str, Any] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """For a plan's tensors: the dtype that the other segments expect, by torch's name."""
    ranges: tuple[Ranges, ...] = ()
    parts: tuple[SegmentFiles | BranchFiles, ...] = ()
    """The parts that run instead of the segment's own graph, which is then not written."""


@dataclass(frozen=True)
class BranchFiles:
    """A data-dependent branch with two blocks.

    `condition` is the archive of a graph that computes one bool tensor from the tensors `reads`.
    True selects the first of `blocks`. `inputs` are the tensors that the condition and the blocks
    read, `outputs` the results of each block.
    """

    condition: bytes
    reads: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    blocks: tuple[tuple[SegmentFiles, ...], tuple[SegmentFiles, ...]]


@dataclass(frozen=True)
class ModelArtifact:
    """The contents of one folder of a model repository.

    `inputs` are in the order of `spec.inputs`, `outputs` in the order of the lowered graph's
    results. `lowered` is the TorchScript archive of the lowered graph (flat tensors in, tuple of
    tensors out). `plan` is None or empty if nothing was compiled. With `serve_as`
    "pytorch_libtorch", Triton's PyTorch backend serves `lowered`. If there are `segments`, they
    replace both. `step_of` names the ensemble of which the model is an internal step.
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
    """For a step: the ensemble's name of a tensor, if the step requires another name (INPUT__0)."""
    padding: Padding | None = None
    """How requests of different lengths are batched, if the goldens have confirmed it."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """For each output that may be None: the segments' output that is true if it is a tensor.

    A response contains no flags, and omits outputs that are None.
    """
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Like `flags`, for outputs that are None in every golden. The endpoint does not have them, and
    a request for which one is a tensor fails.
    """
    too_long: Mapping[str, str] = field(default_factory=dict)
    """For each list: the segments' output that is true if the list is longer than `max_lengths`
    declares. Such a request fails.
    """
    no_warmup: frozenset[str] = frozenset()
    """The names of warm-up requests that the model does not answer, which the config leaves out."""
    row_dependence: str | None = None
    """Why requests must not be batched, if the model's graph shows a reason that the goldens may
    not.
    """

    def client_inputs(self) -> tuple[IO, ...]:
        """The inputs of a request: all except state that the server keeps."""
        server_state = {state.input for state in self.spec.server_state}
        return tuple(io for io in self.inputs if io.name not in server_state)

    def client_outputs(self) -> tuple[IO, ...]:
        """The outputs of a response."""
        server_state = {state.output for state in self.spec.server_state}
        return tuple(io for io in self.outputs if io.name not in server_state)

    def ranges(self) -> tuple[Ranges, ...]:
        """The shapes of every input at min, opt and max, for each profile."""
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
    """A model as a Triton ensemble, with `steps` in execution order.

    A tensor has the same name in all steps, which connects them. `inputs` and `outputs` are those
    of the model. The goldens are those of the whole model; each step has its own.
    """

    spec: ModelSpec
    inputs: tuple[IO, ...]
    outputs: tuple[IO, ...]
    profiles: tuple[Profile, ...]
    steps: tuple[ModelArtifact, ...]
    goldens: tuple[Golden, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
