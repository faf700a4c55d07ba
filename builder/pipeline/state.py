"""Models whose state the server keeps: their requirements, and their form with the batch axis
first.

In Triton the batch is the first axis of every tensor, including states; in an LSTM's state it is
the second. The graph of such a model is served with a permutation at its inputs and outputs.
Goldens are recorded from the unchanged module. All later stages (conversion, segments, plan,
goldens on disk) have the batch first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from builder import lowering, parity
from builder.errors import UsageError
from builder.manifest import ModelSpec, TensorSpec, manifest_location

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from builder.lowering import LoweredGraph
    from builder.triton import Golden

EXPLICIT = (
    "use sequences: {mode: explicit}: clients send the state and receive the next one"
)


def check(spec: ModelSpec, names: Sequence[str]) -> None:
    """Raise UsageError, with the line of the manifest, if a server cannot keep this model's state.
    `names` are the output names.
    """
    states = spec.server_state
    for index, state in enumerate(states):
        if state.output not in names:
            raise UsageError(
                f"state[{index}].output: the model has no output {state.output!r}",
                where=manifest_location(spec, "state", index, "output"),
                fix=f"use one of {', '.join(names)}",
            )
    if states:
        _left_for_clients(
            spec,
            "send",
            {str(tensor.name) for tensor in spec.inputs}
            - {state.input for state in states},
        )
        _left_for_clients(spec, "read", set(names) - {state.output for state in states})
        _require_fixed_size(spec)


def _require_fixed_size(spec: ModelSpec) -> None:
    varying = parity.varying_axes(spec)
    for index, state in enumerate(spec.server_state):
        if state.input in varying:
            raise UsageError(
                f"state {state.input!r} changes its size: axis {varying[state.input]!r} is"
                " dynamic, and only the batch axis may be. That is the first axis of every other"
                " input",
                where=manifest_location(spec, "state", index),
                fix=f"use a fixed size for the axis, or {EXPLICIT}",
            )


def _left_for_clients(spec: ModelSpec, verb: str, names: set[str]) -> None:
    if not names:
        raise UsageError(
            f"a client would have nothing to {verb}: the server keeps all of it as state",
            where=manifest_location(spec, "state"),
            fix=EXPLICIT,
        )


def batch_first(
    spec: ModelSpec,
    lowered: LoweredGraph,
    names: Sequence[str],
    goldens: Sequence[Golden],
) -> tuple[ModelSpec, LoweredGraph, tuple[Golden, ...]]:
    """The model with the batch axis first in every state that the server keeps. `names` are the
    output names.
    """
    moved = state_axes(spec)
    if not moved:
        return spec, lowered, tuple(goldens)
    ranks = {str(tensor.name): len(tensor.shape) for tensor in spec.inputs}
    indices = {str(tensor.name): index for index, tensor in enumerate(spec.inputs)}
    inputs = {indices[name]: (axis, ranks[name]) for name, axis in moved.items()}
    partners = {state.input: state.output for state in spec.server_state}
    outputs = {
        list(names).index(partners[name]): (axis, ranks[name])
        for name, axis in moved.items()
    }
    tensors = moved | {partners[name]: axis for name, axis in moved.items()}
    return (
        replace(spec, inputs=tuple(_first(tensor, moved) for tensor in spec.inputs)),
        lowering.endpoints.axes_first(lowered, inputs, outputs),
        tuple(golden.changed(partial(_all_moved, moved=tensors)) for golden in goldens),
    )


def state_axes(spec: ModelSpec) -> dict[str, int]:
    """The batch axis of each state input whose batch axis is not the first."""
    state_inputs = {state.input for state in spec.server_state}
    batch = parity.sequence_axis(spec)
    axes = {
        str(tensor.name): tensor.shape.index(batch)
        for tensor in spec.inputs
        if tensor.name in state_inputs and batch in tensor.shape
    }
    return {name: axis for name, axis in axes.items() if axis}


def _first(tensor: TensorSpec, moved: Mapping[str, int]) -> TensorSpec:
    shape = list(tensor.shape)
    size = shape.pop(moved.get(str(tensor.name), 0))
    return replace(tensor, shape=(size, *shape))


def _all_moved(
    arrays: Mapping[str, NDArray[Any]], moved: Mapping[str, int]
) -> dict[str, NDArray[Any]]:
    return {name: _moved(array, moved.get(name, 0)) for name, array in arrays.items()}


def _moved(array: NDArray[Any], axis: int) -> NDArray[Any]:
    import numpy as np

    if axis:
        return np.ascontiguousarray(np.moveaxis(array, axis, 0))
    return array
