"""The job of a client process: requests, protocol and load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from builder.errors import UsageError
from builder.manifest import read_sets
from builder.parity import PublishedModel, recorded_streams
from builder.serving import PLAIN, Access
from builder.triton import Golden

Sequences = tuple[tuple[Golden, ...], ...]
"""The sequences to send. Each is a list of requests, with one request for a model without state."""


@dataclass(frozen=True)
class Load:
    """A load: `concurrency` requests in flight (closed loop), or `rate` requests per second with
    Poisson arrivals (open loop). Exactly one is set.
    """

    concurrency: int | None = None
    rate: float | None = None

    def __str__(self) -> str:
        if self.concurrency:
            return f"c{self.concurrency}"
        return f"{self.rate:g}/s"

    def share(self, number: int, count: int) -> Load:
        """The share of process `number` of `count`."""
        if self.rate is not None:
            return Load(rate=self.rate / count)
        assert self.concurrency is not None
        return Load(self.concurrency // count + (number < self.concurrency % count))


@dataclass(frozen=True)
class Job:
    """The work of one client process. Times are seconds of time.monotonic(), which all processes of
    a host share.
    """

    protocol: str
    url: str
    model: str
    sequences: Sequences
    stateful: bool
    memory: str
    load: Load
    seconds: float
    timeout: float
    seed: int
    access: Access = PLAIN


@dataclass
class Samples:
    """The measurements of one client process.

    `intended` and `sent` are the times at which each request was to be sent and was sent,
    `completed` the time of its response, in seconds. `errors` are counted by kind. `dropped`
    counts requests that were not sent because too many were in flight.
    """

    intended: NDArray[np.float64]
    sent: NDArray[np.float64]
    completed: NDArray[np.float64]
    rows: NDArray[np.int64]
    errors: dict[str, int]
    example: dict[str, str]
    dropped: int
    cpu_seconds: float
    wall_seconds: float


def requests(
    model: PublishedModel, file: Path | None = None, names: Sequence[str] = ()
) -> Sequences:
    """The requests for the model: its goldens, those of `names`, or the arrays of an .npz `file`,
    in the endpoint's types. A model with state has whole sequences.

    Raises UsageError if there are none, or the file does not have the model's inputs.
    """
    if file is not None:
        return tuple((golden,) for golden in _from_file(model, file))
    goldens = [model.wire(golden) for golden in model.goldens]
    if model.keeps_state:
        sequences = tuple(
            stream.requests for stream in recorded_streams(model, goldens)
        )
    else:
        sequences = tuple(
            (golden,) for golden in goldens if not names or golden.name in names
        )
    if not sequences:
        known = ", ".join(golden.name for golden in goldens) or "none"
        raise UsageError(
            f"model {model.name!r} has no golden with this name",
            fix=f"use one of {known}",
        )
    return sequences


def _from_file(model: PublishedModel, file: Path) -> list[Golden]:
    """Read one request from arrays with the inputs' names, or several from `<n>/<input>`."""
    input_names = {tensor.name for tensor in model.config.input}
    required = {tensor.name for tensor in model.config.input if not tensor.optional}
    sets = read_sets(file)
    wrong = [
        number
        for number, inputs in sets.items()
        if not required <= set(inputs) <= input_names
    ]
    if wrong or not sets:
        number = wrong[0] if wrong else 0
        names = ", ".join(sorted(sets.get(number, {}))) or "none"
        of = f"request '{number}' of the file" if len(sets) > 1 else "the file"
        raise UsageError(
            f"{of} has other arrays than the model's inputs: {names}",
            where=str(file),
            fix=f"write one array for each input of {model.name!r}:"
            f" {', '.join(sorted(input_names))}",
        )
    goldens = [
        Golden(f"{file.stem}-{name}", inputs, {}) for name, inputs in sets.items()
    ]
    return [model.wire(golden) for golden in goldens]


def rows(golden: Golden, max_batch_size: int) -> int:
    """The rows that a request adds to a batch: 1 if Triton does not batch."""
    first = next(iter(golden.inputs.values()), None)
    if max_batch_size and first is not None and first.ndim:
        return int(first.shape[0])
    return 1
