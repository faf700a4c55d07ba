"""Compare a running server with every golden of every model of a repository, over both
protocols.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tritonclient.utils import InferenceServerException

from builder.errors import UsageError
from builder.parity import config_check, served, streams
from builder.parity.clients import Client, connected, describe
from builder.parity.comparison import compare
from builder.parity.results import (
    FAILURES,
    GoldenResult,
    ModelParity,
    milliseconds,
    percentiles,
    transport,
)
from builder.parity.served import PublishedModel
from builder.parity.shared_memory import BODY
from builder.parity.shared_memory import check as check_memory
from builder.progress import Progress
from builder.serving import PLAIN, Access, no_server
from builder.store import shaped
from builder.triton import Golden

REPEAT = 5
CONCURRENT = 16
"""Number of parallel requests to a model with dynamic batching, so that its batches are also
compared.
"""
CONCURRENT_MAX_BYTES = 8 << 20

_PARAMETERS = ("trt_build.answered_by", "trt_build.device", "trt_build.why")


def verify(
    repository: Path,
    http_url: str | None,
    grpc_url: str | None,
    models: Sequence[str] | None = None,
    *,
    repeat: int = REPEAT,
    timeout: float = 60.0,
    access: Access = PLAIN,
    extra: Mapping[str, Sequence[Golden]] | None = None,
    shared_memory: Sequence[str] = (BODY,),
    progress: Progress | None = None,
) -> list[ModelParity]:
    """Send every golden of `models`, or of all models, and the `extra` goldens by model, to the
    server (host:port each; None leaves a protocol out), with each kind of `shared_memory` ("none":
    in the requests, "system", "cuda").

    `access` has TLS and headers. `progress` is called with each model and its number. Raises
    UsageError for an unknown model or no protocol, EnvironmentProblem if no server responds or this
    machine does not support the memory. All other errors are in the results.
    """
    check_memory(shared_memory)
    opened = connected(
        "verify", http_url, grpc_url, timeout, access, other_options=", or --serve"
    )
    with opened as clients:
        chosen = served.chosen(repository, models)
        results = []
        for number, name in enumerate(chosen, 1):
            if progress:
                progress(name, f"verify ({number} of {len(chosen)})")
            extra_goldens = (extra or {}).get(name, ())
            folder = repository / name
            check = partial(
                _model, folder, clients, repeat, extra_goldens, shared_memory
            )
            results.append(_checked(folder, check))
        return results


def _checked(folder: Path, check: Callable[[], ModelParity]) -> ModelParity:
    """The result of a model's check, or of a folder that cannot be read."""
    try:
        with shaped(folder):
            return check()
    except UsageError as error:  # the folder cannot be read
        problems = (str(error),)
        return ModelParity(folder.name, "unknown", None, None, None, (), problems)


def _model(
    folder: Path,
    clients: Mapping[str, Client],
    repeat: int,
    extra: Sequence[Golden],
    memories: Sequence[str],
) -> ModelParity:
    model = served.read(folder)
    problems = tuple(_problems(model, clients))
    goldens = [model.wire(golden) for golden in (*model.goldens, *extra)]
    if problems or not goldens:
        return _parity(model, {}, (), problems or ("it has no goldens to verify",))
    damaged = tuple(served.damaged(model))
    if model.keeps_state:
        parity = _stateful(model, clients, goldens, memories)
        return replace(parity, problems=(*parity.problems, *damaged))
    results = [
        _send_golden(client, protocol, model, golden, repeat, memory)
        for memory in memories
        for protocol, client in clients.items()
        for golden in goldens
    ]
    if BODY in memories:
        results += _in_parallel(model, clients, goldens)
    return _parity(model, _answered_by(model, clients, goldens[0]), results, damaged)


def _stateful(
    model: PublishedModel,
    clients: Mapping[str, Client],
    goldens: Sequence[Golden],
    memories: Sequence[str],
) -> ModelParity:
    """Verify whole sequences, because a client cannot send state."""
    recorded = streams.recorded_streams(model, goldens)
    if not recorded:
        return _parity(
            model, {}, (), ("it keeps state, and has no sequences to verify",)
        )
    results = tuple(streams.send_all(model, clients, recorded, memories))
    return _parity(
        model, _answered_by(model, clients, recorded[0].requests[0]), results, ()
    )


def _parity(
    model: PublishedModel,
    parameters: Mapping[str, Any],
    results: Sequence[GoldenResult],
    problems: Sequence[str],
) -> ModelParity:
    return ModelParity(
        name=model.name,
        platform=str(model.sidecar["serve_as"]),
        answered_by=parameters.get("trt_build.answered_by"),
        device=parameters.get("trt_build.device"),
        why=parameters.get("trt_build.why"),
        results=tuple(results),
        problems=tuple(problems),
        has_plan=any(model.folder.glob("*/*.plan")),
    )


def _problems(model: PublishedModel, clients: Mapping[str, Client]) -> Iterator[str]:
    for protocol, client in clients.items():
        try:
            if not client.ready(model.name):
                yield f"{protocol}: the server does not have it ready"
                continue
            yield from (
                f"{protocol}: {text}"
                for text in config_check.differences(
                    model.config, client.config(model.name)
                )
            )
        except FAILURES as error:
            raise_if_unreachable(error, protocol, client.url)
            yield f"{protocol}: {error}"


def raise_if_unreachable(error: Exception, protocol: str, url: str) -> None:
    """Raise EnvironmentProblem if no server listens at `url`. Otherwise do nothing."""
    if unreachable(error):
        raise no_server(error, url, protocol=protocol, address="its address") from error


def unreachable(error: Exception) -> bool:
    """Whether the error of a request means that no server listens."""
    status = error.status() if isinstance(error, InferenceServerException) else None
    return isinstance(error, OSError) or status == "StatusCode.UNAVAILABLE"


def _answered_by(
    model: PublishedModel, clients: Mapping[str, Client], golden: Golden
) -> Mapping[str, Any]:
    """What ran the model. It comes from a response's parameters if available, else from the
    runtime. Triton's own backend runs the plan.
    """
    if model.config.backend == "tensorrt":
        return {
            "trt_build.answered_by": "plan",
            "trt_build.why": "Triton's TensorRT backend",
        }
    if model.config.backend == "pytorch":
        return {
            "trt_build.answered_by": "torch",
            "trt_build.why": "Triton's PyTorch backend",
        }
    client = next(iter(clients.values()))
    if model.config.HasField("ensemble_scheduling"):
        return _answered_by_steps(model, clients)
    position = streams.sequence_of_one_request() if model.keeps_state else None
    try:
        messages = client.infer(model.name, golden.inputs, position=position).parameters
        if "trt_build.answered_by" in messages:
            return messages
        return describe(client, model.name, golden.inputs, position)
    except FAILURES:
        return {}


def _answered_by_steps(
    model: PublishedModel, clients: Mapping[str, Client]
) -> Mapping[str, Any]:
    """What ran an ensemble, from its steps: an ensemble's response does not contain it."""
    folders = [
        model.folder.parent / step.model_name
        for step in model.config.ensemble_scheduling.step
    ]
    steps = [served.read(folder) for folder in folders if folder.is_dir()]
    messages = [
        _answered_by(step, clients, step.wire(step.goldens[0]))
        for step in steps
        if step.goldens
    ]
    joined = {
        key: dict.fromkeys(message[key] for message in messages if message.get(key))
        for key in _PARAMETERS
    }
    facts = {key: ", ".join(values) for key, values in joined.items() if values}
    flavors = {
        flavor for value in joined[_PARAMETERS[0]] for flavor in value.split("+")
    }
    if flavors:
        facts[_PARAMETERS[0]] = "+".join(sorted(flavors))
    return facts


def _send_golden(
    client: Client,
    protocol: str,
    model: PublishedModel,
    golden: Golden,
    repeat: int,
    memory: str = BODY,
) -> GoldenResult:
    try:
        with client.regions(memory, golden) as regions:
            ask = partial(client.infer, model.name, golden.inputs, regions=regions)
            response = ask()
            times = [milliseconds(ask) for _ in range(repeat)]
    except FAILURES as error:
        return GoldenResult(golden.name, transport(protocol, memory), None, str(error))
    comparison = compare(
        response.outputs, golden, model.tolerance, precision=model.precision
    )
    return GoldenResult(
        golden.name,
        transport(protocol, memory),
        comparison,
        None,
        *percentiles(times),
        tuple(times),
    )


def _in_parallel(
    model: PublishedModel, clients: Mapping[str, Client], goldens: Sequence[Golden]
) -> Iterator[GoldenResult]:
    """Send many requests in parallel over gRPC, for models whose requests Triton batches. Returns
    the worst result of each golden.
    """
    small = [
        golden
        for golden in goldens
        if sum(array.nbytes for array in golden.inputs.values()) <= CONCURRENT_MAX_BYTES
    ]
    batched = model.config.HasField("dynamic_batching") or model.config.HasField(
        "ensemble_scheduling"
    )
    if "grpc" not in clients or not batched or not small:
        return
    client = clients["grpc"]
    name = f"grpc x{CONCURRENT}"
    sent = list(itertools.islice(itertools.cycle(small), max(CONCURRENT, len(small))))
    with ThreadPoolExecutor(CONCURRENT) as pool:
        results = list(
            pool.map(lambda golden: _send_golden(client, name, model, golden, 0), sent)
        )
    for golden in small:
        golden_results = [result for result in results if result.golden == golden.name]
        yield min(golden_results, key=lambda result: result.passed)
