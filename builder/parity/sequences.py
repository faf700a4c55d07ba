"""Goldens of a model with state: whole sequences, recorded by calling the module in a loop that
passes its state back to it.

Each request of a sequence is a separate golden, `<sequence>.<number>`, with the state that it
received and the state that it returned. So comparisons of single responses also include them.
`verify` joins them to sequences again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from builder.errors import ModelFileError, UsageError
from builder.manifest import (
    UNNAMED,
    ModelSpec,
    State,
    TensorSpec,
    axis_ranges,
    manifest_location,
    read_arrays,
    shared_first_axis,
)
from builder.parity import inputs
from builder.parity.arrays import to_torch
from builder.parity.user_inputs import user_sequences
from builder.triton import Golden, dtypes

LENGTHS = (6, 4, 5)
"""The number of requests of each recorded sequence. They differ, so that some sequences end while
others continue.
"""

Ask = Callable[[str, Sequence[torch.Tensor]], Golden]
"""Returns the golden of that name for these tensors, in the order of the spec's inputs.
"""
Draw = Callable[[Sequence[TensorSpec], Mapping[str, int], int], Sequence[torch.Tensor]]
"""Returns inputs of these specs for axis sizes and a seed."""
Request = Mapping[str, torch.Tensor]
"""A client's request: every input except state, by name."""


def record(spec: ModelSpec, ask: Ask, draw: Draw) -> Iterator[Golden]:
    """The goldens of all sequences, drawn and the user's. Yields none for a model without state,
    or whose state changes its size.

    Raises UsageError, with the line of the manifest, if state has another dtype or shape in the
    output than in the input.
    """
    if not spec.state or varying_axes(spec):
        return
    for number, length in enumerate(LENGTHS):
        name = f"sequence-{number}"
        yield from record_sequence(
            spec,
            ask,
            name,
            [_drawn(spec, name, number, at, draw) for at in range(length)],
        )
    for name, requests in user_sequences(spec):
        _one_row(spec, requests)
        yield from record_sequence(spec, ask, name, requests)


def record_sequence(
    spec: ModelSpec, ask: Ask, name: str, requests: Sequence[Request]
) -> Iterator[Golden]:
    """Run the module in a loop: each request receives the state from the previous one."""
    sizes = _sizes(spec, requests[0])
    states = {state.input: initial(spec, state, sizes) for state in spec.state}
    for number, request in enumerate(requests):
        tensors = {**request, **states}
        golden = _golden_of(
            spec,
            ask,
            f"{name}.{number:03}",
            [tensors[str(tensor.name)] for tensor in spec.inputs],
        )
        check(spec, golden)
        yield golden
        states = {
            state.input: to_torch(golden.outputs[state.output]) for state in spec.state
        }


def _golden_of(
    spec: ModelSpec, ask: Ask, name: str, tensors: Sequence[torch.Tensor]
) -> Golden:
    try:
        return ask(name, tensors)
    except (RuntimeError, IndexError) as failure:
        reason = (str(failure).strip().splitlines() or [type(failure).__name__])[-1]
        raise ModelFileError(
            f"the original module fails on request {name} of a sequence, with the state that it"
            f" gave: {reason}",
            where=manifest_location(spec, "state"),
            fix="correct the pairs under 'state', or pass your own sequences in 'goldens'",
        ) from failure


def check(spec: ModelSpec, golden: Golden) -> None:
    """Raise UsageError if an output cannot be the next request's state: it is missing, or has
    another dtype or shape.
    """
    for index, state in enumerate(spec.state):
        if state.output not in golden.outputs:
            known = ", ".join(golden.outputs)
            raise UsageError(
                f"state[{index}].output: the model has no output {state.output!r}",
                where=manifest_location(spec, "state", index, "output"),
                fix=f"use one of {known}",
            )
        before = golden.inputs[state.input]
        after = golden.outputs[state.output]
        if before.dtype != after.dtype or before.shape != after.shape:
            raise UsageError(
                f"output {state.output!r} is {_kind(after)}, and input {state.input!r}, which it is"
                f" to become, {_kind(before)} (golden {golden.name})",
                where=manifest_location(spec, "state", index),
                fix="correct the pair, or use a model that returns its state in the form of its "
                "input",
            )


def initial(spec: ModelSpec, state: State, sizes: Mapping[str, int]) -> torch.Tensor:
    """The initial state of a sequence with these axis sizes.

    Raises UsageError for an invalid file.
    """
    tensor = next(
        candidate for candidate in spec.inputs if candidate.name == state.input
    )
    shape = tensor.sized(sizes)
    if state.initial is None:
        return torch.zeros(shape, dtype=getattr(torch, tensor.dtype))
    return to_torch(_read(spec, state, tensor)).expand(shape).contiguous()


def varying_axes(spec: ModelSpec) -> dict[str, str]:
    """By state input, a dynamic axis that is not the batch: a server cannot keep state of changing
    size.
    """
    batch = sequence_axis(spec)
    dynamic_axes = {
        str(tensor.name): [
            axis for axis in tensor.shape if isinstance(axis, str) and axis != batch
        ]
        for tensor in spec.state_inputs
    }
    return {name: axes[0] for name, axes in dynamic_axes.items() if axes}


def _read(spec: ModelSpec, state: State, tensor: TensorSpec) -> np.ndarray[Any, Any]:
    shape = tuple(1 if isinstance(axis, str) else axis for axis in tensor.shape)
    index = spec.state.index(state)
    where = manifest_location(spec, "state", index, "initial")
    try:
        array = read_arrays(Path(str(state.initial))).get(UNNAMED)
        if array is None:
            raise ValueError("it is an .npz")
    except ValueError as error:
        raise UsageError(
            f"state[{index}].initial is not an .npy file of a plain array: {error}",
            where=where,
        ) from error
    if array.shape != shape or array.dtype != dtypes.by_name(tensor.dtype).numpy:
        raise UsageError(
            f"state[{index}].initial is {_kind(array)}; input {state.input!r} starts from"
            f" {tensor.dtype}{list(shape)}",
            where=where,
        )
    return array


def _drawn(
    spec: ModelSpec, name: str, sequence: int, number: int, draw: Draw
) -> Request:
    """A request. The first sequence has the optimum sizes, the others have different ones. One
    sequence is one row of the batch.
    """
    profile = {**axis_ranges(spec.inputs), **spec.profiles[0]}
    kinds = list(inputs.sizes_of(profile).values())
    sizes = dict(kinds[(sequence + number) % len(kinds)] if sequence else kinds[0])
    if batch := sequence_axis(spec):
        sizes[batch] = max(1, profile[batch][0])
    seed = zlib.crc32(f"{spec.name}/{name}.{number}".encode())
    tensors = draw(spec.stateless_inputs, sizes, seed)
    return {
        str(tensor_spec.name): tensor
        for tensor_spec, tensor in zip(spec.stateless_inputs, tensors, strict=True)
    }


def sequence_axis(spec: ModelSpec) -> str | None:
    """The axis along which Triton may batch several sequences: a batch axis that every state also
    has.
    """
    batch = shared_first_axis(spec.stateless_inputs)
    if all(batch in tensor.shape for tensor in spec.state_inputs):
        return batch
    return None


def _one_row(spec: ModelSpec, requests: Sequence[Request]) -> None:
    """Raise UsageError if requests of a sequence that the server batches have several rows, which
    Triton refuses.
    """
    batch = sequence_axis(spec) if spec.server_state else None
    wrong = {_sizes(spec, request).get(str(batch), 1) for request in requests} - {1}
    if wrong:
        raise UsageError(
            f"a request of a sequence has one row; axis {batch!r} of the golden inputs has"
            f" {max(wrong)}",
            where=str(spec.goldens),
            fix="write one set of arrays for each sequence: 0/<name>, 1/<name>, ...",
        )


def _sizes(spec: ModelSpec, request: Request) -> dict[str, int]:
    pairs = [
        (tensor.shape, request[str(tensor.name)].shape)
        for tensor in spec.stateless_inputs
    ]
    return {
        axis: size
        for shape, sizes in pairs
        for axis, size in zip(shape, sizes, strict=True)
        if isinstance(axis, str)
    }


def _kind(array: np.ndarray[Any, Any]) -> str:
    return f"{array.dtype}{list(array.shape)}"
