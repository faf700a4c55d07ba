"""Instances of one model in one process (`runtime: {share_engine: true}`)."""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from builder.deployment import models
from builder.manifest.spec import Runtime
from builder.serving import FREE_PORTS, serve
from builder.serving.stubs import Stubs
from builder.triton import ModelArtifact, config, config_warnings, publish
from builder.triton.instances import SHARED_INSTANCES
from tests.serving import fakes
from tests.serving.test_runtime import doubling_plan, serving_facts
from tests.triton.artifacts import RTX, TENSORRT, cell, scorer

INSTANCES = 3
CLIENTS = 8
SHARING = {"instances": INSTANCES, "runtime": Runtime(share_engine=True)}
TIMEOUT = 20


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setitem(sys.modules, "tensorrt", fakes.tensorrt(fakes.Driver()))
    fakes.LOG.clear()
    fakes.PLAN.clear()
    model, found = fakes.runtime()
    return {**found, "model": model}


END = "the end"
"""What is recorded for the flag that completes a request."""


class Request:
    """A request with the responses that were sent for it."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.sent: list[Any] = []

    def get_response_sender(self) -> Any:
        return SimpleNamespace(send=self.send)

    def send(self, response: Response | None = None, flags: int = 0) -> None:
        self.sent += [response.text] if response else []
        self.sent += [END] if flags else []


@dataclass
class Response:
    text: str
    is_error: bool = False

    def has_error(self) -> bool:
        return self.is_error


class Model:
    """Answers with the value of each request, once `released` is set."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work

    def respond(self, requests: Sequence[Request], after_reading: Any) -> list[Any]:
        if requests[0].value < 0:
            raise SystemExit("a defect")
        after_reading()
        self.work()
        return [Response(str(request.value)) for request in requests]

    def failure(self, error: Exception) -> Response:
        return Response(f"failed: {error}", is_error=True)


def test_instances_run_in_parallel_and_hold_back_the_next_batch(
    modules: dict[str, Any],
) -> None:
    """`submit` returns only while an instance is free. Otherwise Triton would pass every request,
    and none would wait where batches are formed.
    """
    started, released = threading.Semaphore(0), threading.Event()

    def work() -> None:
        started.release()
        assert released.wait(TIMEOUT)

    instances = modules["instances"].Instances([Model(work) for _ in range(INSTANCES)])
    requests = [Request(value) for value in range(INSTANCES + 2)]
    submitted = [threading.Event() for _ in requests]

    def submit() -> None:  # like Triton, from one thread
        for request, is_submitted in zip(requests, submitted, strict=True):
            instances.submit([request])
            is_submitted.set()

    thread = threading.Thread(target=submit, daemon=True)
    thread.start()
    for _ in range(INSTANCES):
        assert started.acquire(timeout=TIMEOUT)
    assert submitted[INSTANCES - 2].wait(TIMEOUT)
    assert not submitted[INSTANCES - 1].wait(0.1), "all instances are busy"
    assert not any(request.sent for request in requests)
    released.set()
    thread.join(TIMEOUT)
    instances.close()
    assert [request.sent for request in requests] == [
        [str(n), END] for n in range(INSTANCES + 2)
    ]
    assert not any(thread.is_alive() for thread in instances.threads)


def test_instance_answers_after_a_failure_and_a_response_that_does_not_fit(
    modules: dict[str, Any],
) -> None:
    """Triton counts a response as sent before it is written to shared memory. Without the second
    message, the client would wait forever.
    """

    class Large(Request):
        def send(self, response: Response | None = None, flags: int = 0) -> None:
            if response:
                raise RuntimeError("No space left on device")
            super().send(response, flags)

    instances = modules["instances"].Instances([Model(lambda: None) for _ in range(2)])
    large, failing, last = Large(1), Request(-1), [Request(2), Request(3)]
    for batch in ([large], [failing], [failing], last):
        instances.submit(batch)
    instances.close()
    assert large.sent == [END]
    assert failing.sent == ["failed: SystemExit: a defect", END] * 2
    assert [request.sent for request in last] == [["2", END], ["3", END]]
    assert fakes.LOG == ["trt-build: a response was not sent: No space left on device"]


def test_instance_answers_after_a_batch_that_could_not_be_sent(
    modules: dict[str, Any],
) -> None:
    """A thread that ends would take an instance from all later requests."""

    class Broken(Model):
        def respond(self, requests: Sequence[Request], after_reading: Any) -> list[Any]:
            responses = super().respond(requests, after_reading)
            return responses if requests[0].value else [None]

    instances = modules["instances"].Instances([Broken(lambda: None) for _ in range(2)])
    requests = [Request(0), Request(0), Request(0), Request(1)]
    thread = threading.Thread(
        target=lambda: [instances.submit([request]) for request in requests],
        daemon=True,
    )
    thread.start()
    thread.join(TIMEOUT)
    assert not thread.is_alive()
    instances.close()
    assert requests[-1].sent == ["1", END]
    assert len(fakes.LOG) == 3 and "a batch was not answered" in fakes.LOG[0]


def test_idle_instance_keeps_no_request(modules: dict[str, Any]) -> None:
    """A response sender keeps its model loaded, and a tensor its region mapped."""
    instances = modules["instances"].Instances([Model(lambda: None) for _ in range(2)])
    request = Request(1)
    kept = weakref.ref(request)
    answered = threading.Event()
    instances.batches.put(
        SimpleNamespace(requests=[request], is_read=threading.Event(), send=id)
    )
    instances.batches.put(
        SimpleNamespace(
            requests=[], is_read=threading.Event(), send=lambda _: answered.set()
        )
    )
    del request
    assert answered.wait(TIMEOUT)
    deadline = time.monotonic() + TIMEOUT
    while kept() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert kept() is None
    instances.close()


def test_server_without_senders_gets_its_responses_from_execute(
    modules: dict[str, Any],
) -> None:
    class Old(Request):
        def get_response_sender(self) -> Any:
            raise RuntimeError("only in decoupled models")

    model = modules["model"].TritonPythonModel()
    model.name = "m"
    model.respond = lambda requests: [request.value for request in requests]
    model.instances = modules["instances"].Instances([model, model])
    assert [model.execute([Old(n)]) for n in range(2)] == [[0], [1]]
    assert len(fakes.LOG) == 1 and "one request at a time" in fakes.LOG[0]


def engine_arguments(plan: Any, folder: Path) -> tuple[Any, ...]:
    """The required arguments of an Engine of this plan, which is written into the folder."""
    fakes.PLAN.append(plan)
    path = folder / "model.plan"
    path.write_bytes(b"plan")
    stream = SimpleNamespace(cuda_stream=7)
    return path, "tensorrt", serving_facts(plan), "cpu", stream


def test_engines_of_one_plan_share_its_weights_until_the_last_is_released(
    modules: dict[str, Any], tmp_path: Path
) -> None:
    arguments = engine_arguments(doubling_plan(), tmp_path)
    engines = [modules["engine"].Engine(*arguments) for _ in range(2)]
    shared = engines[0].engine
    assert engines[1].engine is shared
    assert engines[0]._context(0) is not engines[1]._context(0)
    engines.clear()
    gc.collect()
    assert modules["engine"].Engine(*arguments).engine is not shared


@pytest.mark.parametrize("is_new", [False, True], ids=["8.6", "11"])
def test_engines_use_one_memory_one_at_a_time(
    modules: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_new: bool,
) -> None:
    plan = doubling_plan()
    arguments = (*engine_arguments(plan, tmp_path), False, True)
    engine = modules["engine"].Engine(*arguments)
    if is_new:
        strategies = SimpleNamespace(USER_MANAGED="user managed")
        engine.trt.ExecutionContextAllocationStrategy = strategies
        kind = type(engine.engine)
        monkeypatch.setattr(
            kind, "device_memory_size_v2", fakes.DEVICE_MEMORY, raising=False
        )
        monkeypatch.delattr(kind, "device_memory_size")
        monkeypatch.setattr(
            kind,
            "create_execution_context",
            lambda self, strategy: {
                "user managed": fakes.NewContext(plan, fakes.Driver())
            }[strategy],
        )
    other = modules["engine"].Engine(*arguments)
    x = torch.ones(2, 3)
    assert torch.equal(engine.run([x])[0], 2 * x)
    with engine.exclusive, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.run, [3 * x])
        time.sleep(0.1)
        executed = plan.calls["execute"]
        engine.exclusive.lock.release()  # the other engine may run from here on
        assert torch.equal(waiting.result(TIMEOUT)[0], 6 * x)
        engine.exclusive.lock.acquire()
    assert executed == 1
    contexts = {context for one in (engine, other) for context in one.contexts.values()}
    (address,) = {context.device_memory for context in contexts}
    assert len(contexts) == 2
    assert address


@pytest.mark.parametrize("count", [1, INSTANCES])
def test_config_is_parsed_once_for_all_instances(
    count: int, modules: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[str] = []
    shares: list[bool] = []

    def loads(text: str) -> Any:
        parsed.append(text)
        return json.loads(text)

    def executor(folder: Path, facts: Any, args: Any, shares_memory: bool) -> Any:
        shares.append(shares_memory)
        return SimpleNamespace(
            kind="plan", device="cpu", why="", stream=None, prepare=lambda: None
        )

    for module in modules.values():
        if hasattr(module, "json"):
            monkeypatch.setattr(module, "json", SimpleNamespace(**vars(json)))
            monkeypatch.setattr(module.json, "loads", loads)
    modules["model"].executor = executor
    facts = json.dumps({"serving": serving_facts(doubling_plan())})
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "plan.json").write_text(facts)
    shared = {SHARED_INSTANCES: {"string_value": str(count)}}
    text = json.dumps({"max_batch_size": 8, "parameters": shared})
    args = {"model_repository": str(tmp_path), "model_version": "1", "model_name": "m"}
    served = modules["model"].TritonPythonModel()
    served.initialize({**args, "model_config": text})
    served.finalize()
    assert shares == [count > 1] * count
    assert parsed.count(text) == 1


def test_shared_instances_are_one_instance_for_triton(tmp_path: Path) -> None:
    message = config(scorer(serve_as="python", **SHARING))
    assert [group.count for group in message.instance_group] == [1]
    assert message.parameters[SHARED_INSTANCES].string_value == str(INSTANCES)
    folder = publish(scorer(serve_as="python", **SHARING), tmp_path / "shared")
    separate = publish(scorer(serve_as="python", instances=3), tmp_path / "separate")
    one, other = models.read(folder), models.read(separate)
    assert (one.instances, one.concurrent, other.concurrent) == (1, INSTANCES, 3)
    process = models.STUB_SHM_BYTES
    assert other.shared_memory - one.shared_memory == (INSTANCES - 1) * process
    plain = config(scorer(serve_as="python", instances=INSTANCES))
    assert [group.count for group in plain.instance_group] == [INSTANCES]
    assert SHARED_INSTANCES not in plain.parameters


OLD = {"flavor": "tensorrt", "tensorrt": "8.6.1"}
BY_PLAN = {"serve_as": "tensorrt_plan", "facts": TENSORRT, "plan": b"plan"}


@pytest.mark.parametrize(
    "more, of_step, count, warning",
    [
        ({}, None, 1, None),
        ({"facts": RTX, "plan": b"plan"}, None, 1, None),
        (BY_PLAN, None, INSTANCES, "tensorrt_plan serves"),
        ({}, "whole", INSTANCES, "a step of the ensemble 'whole'"),
        ({"triton": {"instance_group": [{"count": 2}]}}, None, 2, "has a count"),
        ({"facts": OLD, "plan": b"plan"}, None, 1, "requires Triton 24.10"),
    ],
)
def test_warning_says_why_instances_do_not_share(
    more: dict[str, Any], of_step: str | None, count: int, warning: str | None
) -> None:
    artifact = scorer(**{"serve_as": "python", **SHARING, **more})
    artifact = replace(artifact, step_of=of_step)
    assert [group.count for group in config(artifact).instance_group] == [count]
    _check_warning(artifact, warning)


def test_instances_with_state_keep_their_own_process() -> None:
    artifact = cell(serve_as="python", **SHARING)
    assert [group.count for group in config(artifact).instance_group] == [INSTANCES]
    _check_warning(artifact, "the state of its own sequences")


def _check_warning(artifact: ModelArtifact, warning: str | None) -> None:
    texts = config_warnings(artifact)
    assert len(texts) == (warning is not None)
    assert warning is None or warning in texts[0]


@pytest.mark.live
def test_live_instances_share_a_process_and_answer_each_client(tmp_path: Path) -> None:
    artifact = scorer(serve_as="python", **SHARING)
    publish(artifact, tmp_path / "repository")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(48, 2, 3)).astype(np.float32)
    with serve(tmp_path / "repository", **FREE_PORTS) as server:
        urls = [(http, server.http_url), (grpc, server.grpc_url)] * (CLIENTS // 2)

        def answers(number: int) -> list[Any]:
            module, url = urls[number]
            client = module.InferenceServerClient(url)
            return [_scores(module, client, x) for x in rows[number::CLIENTS]]

        with ThreadPoolExecutor(CLIENTS) as pool:
            parallel = list(pool.map(answers, range(CLIENTS)))
        alone = [answers(number) for number in range(CLIENTS)]
        np.testing.assert_allclose(parallel, alone, rtol=1e-6, atol=1e-6)
        client = grpc.InferenceServerClient(server.grpc_url)
        with pytest.raises(InferenceServerException, match="ids"):
            _scores(grpc, client, rows[0], ids=99)
        assert Stubs(server.process.pid).running("scorer") == 1
        assert "instances in this process: 3" in server.log()


def _scores(module: Any, client: Any, x: Any, ids: int = 1) -> Any:
    tensors = []
    arrays = {"x": x, "ids": np.full((len(x), 1), ids, np.int64)}
    for name, array in arrays.items():
        kind = "FP32" if name == "x" else "INT64"
        tensors.append(module.InferInput(name, array.shape, kind))
        tensors[-1].set_data_from_numpy(array)
    return client.infer("scorer", tensors).as_numpy("scores")
