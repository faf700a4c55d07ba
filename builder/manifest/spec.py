"""The validated content of a manifest as dataclasses, which all later packages read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Range = tuple[int, int, int]
"""The minimum, optimum and maximum size of a dynamic axis: TensorRT's min, opt, max."""

Profile = Mapping[str, Range]
"""One TensorRT optimization profile: a range for each named dynamic axis."""

Default = int | float | bool | list[int | float | bool]
"""The value of all elements of an optional input, or of the elements of its last axis."""


@dataclass(frozen=True)
class TensorSpec:
    """One input: `dtype` is torch's name, `shape` has ints and axis names, `dims` their ranges.

    TensorSpec("float32", ("batch", 3, 224, 224), dims={"batch": (1, 8, 32)}); a static spec has
    ints only. An axis of the same name in two inputs is the same size. Raises UsageError for an
    unknown dtype, an axis without a range, or a range that is not 0 <= min <= opt <= max.
    """

    dtype: str
    shape: tuple[int | str, ...]
    dims: Mapping[str, Range] = field(default_factory=dict)
    name: str | None = None

    def __post_init__(self) -> None:
        from builder.manifest.validate import check_tensor_spec

        check_tensor_spec(self)

    def at(self, profile: Profile, which: int) -> tuple[int, ...]:
        """The concrete shape at the profile's min (0), opt (1) or max (2)."""
        return tuple(
            axis if isinstance(axis, int) else profile[axis][which]
            for axis in self.shape
        )

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The concrete shape with these sizes of its named axes."""
        return tuple(
            axis if isinstance(axis, int) else sizes[axis] for axis in self.shape
        )


def axis_ranges(tensors: Iterable[TensorSpec]) -> dict[str, Range]:
    """The range of each axis of the tensors."""
    return {axis: span for tensor in tensors for axis, span in tensor.dims.items()}


def shared_first_axis(tensors: Iterable[TensorSpec]) -> str | None:
    """The dynamic axis that is first in all tensors (the likely batch axis), or None."""
    firsts = {tensor.shape[0] if tensor.shape else None for tensor in tensors}
    axis = None
    if len(firsts) == 1:
        axis = next(iter(firsts))
    return axis if isinstance(axis, str) else None


@dataclass(frozen=True)
class Tolerance:
    """How much an output may differ from its golden.

    It passes if |output - golden| <= atol + rtol * |golden| for every element. In addition, the
    error's root mean square must be at most `noise` times the golden's. None: the default for dtype
    and precision.

    `rounded` has the outputs that depend on results of the model's own operators of float16 or
    bfloat16, with that dtype. The manifest does not state it.
    """

    rtol: float | None = None
    atol: float | None = None
    noise: float | None = None
    rounded: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Batching:
    """Triton's dynamic batcher.

    If `enabled` is None, it depends on the shapes. The delay is in microseconds. `graphs` are batch
    sizes for which Triton's TensorRT backend launches the plan as a CUDA graph.
    """

    enabled: bool | None = None
    max_queue_delay_us: int = 0
    preferred: tuple[int, ...] = ()
    graphs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Fallback:
    """What stays in torch: operators and modules by name, and the minimum nodes of a segment.

    `ranges` has the range of data-dependent sizes, by operator (patterns are allowed) or tensor, so
    that TensorRT can run the nodes after it.
    """

    ops: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    min_block_size: int = 3
    require_full: bool = False
    ranges: Mapping[str, Range] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """A pair of tensors: `output` of one request is `input` of the sequence's next request.

    `initial` is an .npy file with the first state, of the input's dtype and shape, with 1 for a
    dynamic axis. None: zeros.
    """

    input: str
    output: str
    initial: Path | None = None


@dataclass(frozen=True)
class Sequences:
    """Who keeps the state: "implicit", the server by correlation id; "explicit", the client.

    At most `max` sequences are open at once in each instance. A sequence without a request for
    `idle_us` microseconds is ended.
    """

    mode: str = "implicit"
    max: int = 128
    idle_us: int = 60_000_000


@dataclass(frozen=True)
class Runtime:
    """How the Python runtime runs plans on a GPU.

    `cuda_graphs`: capture and replay calls with unchanged shapes. `keep_mapped`: how many inputs in
    CUDA shared memory stay mapped, for clients that use their regions again. `share_engine`: all
    instances run in one process and share the engine's weights and the CUDA context.
    """

    cuda_graphs: bool = True
    keep_mapped: int = 0
    share_engine: bool = False


GOLDENS = "goldens"
"""In calibration data: the inputs of the goldens."""


@dataclass(frozen=True)
class Calibration:
    """How the ranges of 8-bit activations are measured.

    `data` are files (.npz with an array for each input name, or "<n>/<name>" for several batches;
    .npy of the only input), or the goldens' inputs. `method` is "max", "percentile" (`percentile`
    percent of the magnitudes are in range) or "entropy". `skip` are fnmatch patterns of layer names
    that are not quantized.
    """

    data: tuple[Path | str, ...]
    method: str = "max"
    percentile: float = 99.99
    skip: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Limits of one model: seconds for each stage of its build, and memory of its process in
    addition to that at its start. None: as the machine allows.
    """

    stage_seconds: int = 3600
    memory_mib: int | None = None


@dataclass(frozen=True)
class Versions:
    """The number of versions of the model in its folder, including the current one, and the number
    of those that Triton serves. 0: a publication replaces version 1.
    """

    keep: int = 0
    serve: int = 1


@dataclass(frozen=True)
class ModelSpec:
    """One model: its file and the content of its manifest, with defaults."""

    name: str
    path: Path
    inputs: tuple[TensorSpec, ...]
    profiles: tuple[Profile, ...] = ({},)
    outputs: tuple[str, ...] | None = None
    module: str | None = None
    precision: str = "fp32"
    tolerance: Tolerance = Tolerance()
    batching: Batching = Batching()
    instances: int = 1
    fallback: Fallback = Fallback()
    goldens: Path | None = None
    unroll_limit: int = 64
    keep_fp32: tuple[str, ...] = ()
    """fnmatch patterns of layer names that stay in float32."""
    keep_fp32_auto: bool = True
    """Whether layers whose values exceed the range of float16 stay in float32 too. False if the
    manifest lists patterns without `auto`.
    """
    build: Mapping[str, Any] = field(default_factory=dict)
    """Options of TensorRT's builder, by the field names of builder.engine.BuildOptions."""
    libraries: tuple[Path, ...] = ()
    manifest: Path | None = None
    state: tuple[State, ...] = ()
    sequences: Sequences = Sequences()
    calibration: Calibration | None = None
    runtime: Runtime = Runtime()
    pad: Mapping[str, int | float | bool] = field(default_factory=dict)
    """The value with which an input is padded, by name, so that requests of different lengths can
    be joined to one batch.
    """
    defaults: Mapping[str, Default] = field(default_factory=dict)
    """The value of each optional input, by name, which the server uses for a request without it."""
    triton: Mapping[str, Any] = field(default_factory=dict)
    """Fields of Triton's ModelConfig, as protobuf's JSON form has them."""
    limits: Limits = Limits()
    versions: Versions = Versions()
    io: str = "module"
    """The dtype of float32 inputs and outputs at the endpoint: "module" (unchanged) or "fp16"."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Values of forward's arguments that are not tensors, by name."""
    max_lengths: Mapping[str, int] = field(default_factory=dict)
    """The maximum length of each output list whose length is not known before the model runs.

    Keys are output names: `boxes`, `output_1`, or `output` for the result itself.
    """
    layout: str = "auto"
    """How a model with several segments is served, one of choices.LAYOUTS."""
    batch_sizes: tuple[int, ...] = ()
    """Sizes of the batch that `profiles` has a static profile for."""
    targets: tuple[str, ...] = ()
    """The targets of a farm file that the model is built for; empty: all of them."""

    @property
    def stateless_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that a client sends with each request of a sequence."""
        names = {state.input for state in self.state}
        return tuple(tensor for tensor in self.inputs if tensor.name not in names)

    @property
    def state_inputs(self) -> tuple[TensorSpec, ...]:
        """The inputs that hold state."""
        names = {state.input for state in self.state}
        return tuple(tensor for tensor in self.inputs if tensor.name in names)

    @property
    def narrowed(self) -> frozenset[str]:
        """The float32 inputs that are float16 at the endpoint.

        State is excluded: it would be rounded in each request and drift.
        """
        if self.io != "fp16":
            return frozenset()
        state_inputs = {state.input for state in self.state}
        return (
            frozenset(
                tensor.name or "" for tensor in self.inputs if tensor.dtype == "float32"
            )
            - state_inputs
        )

    @property
    def server_state(self) -> tuple[State, ...]:
        """The pairs that the server keeps; none if clients send the state themselves."""
        if self.sequences.mode == "implicit":
            return self.state
        return ()
