"""Check every model of a repository with one golden, over each protocol.

Triton reports a model whose process has died as ready; only a request detects it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import UsageError
from builder.parity import served, streams
from builder.parity.clients import Client, connected
from builder.parity.comparison import compare
from builder.parity.results import FAILURES
from builder.parity.served import PublishedModel
from builder.parity.verification import raise_if_unreachable
from builder.serving import PLAIN, Access
from builder.store import shaped
from builder.triton import Golden

TIMEOUT = 10.0


@dataclass(frozen=True)
class ModelHealth:
    """The health of one model over one protocol.

    `problem` is None if it is healthy. `wrong` is set if its outputs differ from the golden.
    `golden` is the sent golden (None: only readiness was checked, for a model without goldens).
    `milliseconds` is the response time.
    """

    name: str
    protocol: str
    golden: str | None
    problem: str | None = None
    wrong: bool = False
    milliseconds: float | None = None

    @property
    def healthy(self) -> bool:
        """Whether there is no problem."""
        return self.problem is None


def health(
    repository: Path,
    http_url: str | None,
    grpc_url: str | None,
    models: Sequence[str] | None = None,
    *,
    timeout: float = TIMEOUT,
    access: Access = PLAIN,
) -> list[ModelHealth]:
    """Send each of `models` (None: all except steps of ensembles) its smallest golden over each
    protocol with an address (host:port), and compare the outputs.

    `timeout` is in seconds for each request. Raises UsageError for an unknown model or no address,
    EnvironmentProblem if no server responds.
    """
    with connected("health", http_url, grpc_url, timeout, access) as clients:
        # an ensemble's golden runs its steps
        names = models or served.without_steps(repository)
        return [
            _check(repository / name, protocol, client)
            for name in served.chosen(repository, names)
            for protocol, client in clients.items()
        ]


def _check(folder: Path, protocol: str, client: Client) -> ModelHealth:
    try:
        with shaped(folder):
            model = served.read(folder)
            request = _request(model, client)
    except UsageError:
        # not of trt-build, or its files are damaged: its server may still serve it
        request = None
    name = folder.name
    golden_name = None
    try:
        if not client.ready(name):
            return ModelHealth(
                name, protocol, None, "the server does not report it as ready"
            )
        if request is None:
            return ModelHealth(name, protocol, None)
        golden, infer = request
        golden_name = golden.name
        begin = time.perf_counter()
        outputs = infer()
        elapsed = (time.perf_counter() - begin) * 1e3
    except FAILURES as error:
        raise_if_unreachable(error, protocol, client.url)
        return ModelHealth(name, protocol, golden_name, str(error))
    problem = _problem(model, outputs, golden)
    return ModelHealth(
        name, protocol, golden_name, problem, problem is not None, elapsed
    )


def _problem(model: PublishedModel, outputs: Any, golden: Golden) -> str | None:
    """The difference between the outputs and the golden; None if there is none."""
    try:
        with shaped(model.folder):
            compared = compare(
                outputs, golden, model.tolerance, precision=model.precision
            )
    except UsageError as error:
        return f"the response cannot be compared: {error.message}"
    return "; ".join(compared.problems) or None


def _request(model: PublishedModel, client: Client) -> tuple[Golden, Any] | None:
    """The smallest golden, and a function that sends it; None without goldens. For a model with
    state it is the first request of a sequence, which it also ends.
    """
    goldens: Sequence[Golden] = [model.wire(golden) for golden in model.goldens]
    position = None
    if model.keeps_state:
        recorded = streams.recorded_streams(model, goldens)
        goldens = [stream.requests[0] for stream in recorded]
        position = streams.sequence_of_one_request()
    if not goldens:
        return None
    golden = min(goldens, key=lambda candidate: _bytes(candidate.inputs))

    def infer() -> Any:
        return client.infer(model.name, golden.inputs, position=position).outputs

    return golden, infer


def _bytes(arrays: Mapping[str, Any]) -> int:
    return sum(array.nbytes for array in arrays.values())
