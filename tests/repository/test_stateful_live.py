"""Models with state on a real server: sequences over both protocols, interleaved and restarted."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from tritonclient.utils import InferenceServerException

from builder.engine import flavor
from builder.parity import verify
from builder.parity.clients import Client, GrpcClient, HttpClient, SequencePosition
from builder.parity.health import health
from builder.repository import build_repository
from builder.serving import FREE_PORTS, serve
from builder.triton import goldens
from tests.parity.asserting import assert_passed
from tests.repository import stateful as models
from tests.triton.artifacts import reseal

pytestmark = [pytest.mark.live, pytest.mark.slow]

IDS = itertools.count(1)
TOO_LONG = np.zeros((1, 9, 6), np.float32)
"""A chunk that the recognizer refuses."""
PROTOCOLS = (
    "http",
    "grpc",
    "http restarted",
    "grpc restarted",
    "http interleaved",
    "grpc interleaved",
)


@dataclass(frozen=True)
class Served:
    models: Path
    repository: Path
    http_url: str
    grpc_url: str


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = models.write(tmp_path_factory.mktemp("stateful"))
    repository = tmp_path_factory.mktemp("served") / "repository"
    results = build_repository(folder, repository, serve_as="python")
    assert all(result.ok for result in results), [
        str(result.error) for result in results
    ]
    with serve(repository, **FREE_PORTS, client_shared_memory=True) as server:
        yield Served(folder, repository, server.http_url, server.grpc_url)


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, served: Served) -> Iterator[Client]:
    opened: Client = (
        HttpClient(served.http_url, 30)
        if request.param == "http"
        else GrpcClient(served.grpc_url, 30)
    )
    yield opened
    opened.close()


def test_health_sends_the_first_request_of_a_sequence(served: Served) -> None:
    results = health(served.repository, served.http_url, served.grpc_url)
    assert results and all(one.healthy for one in results), results
    names = {one.golden for one in results}
    assert None not in names and all(str(name).endswith(".000") for name in names), (
        names
    )


def test_served_sequences_match_the_module_in_a_loop(served: Served) -> None:
    gpu = "tensorrt" in flavor.installed() and flavor.has_gpu()
    memories = ("none", "system", "cuda") if gpu else ("none", "system")
    for parity in verify(
        served.repository, served.http_url, served.grpc_url, shared_memory=memories
    ):
        assert_passed(parity)
        requested = {(result.golden, result.protocol) for result in parity.results}
        assert {
            (f"sequence-{n}", protocol)
            for n in range(3)
            for protocol in ("http", "grpc", "http system")
        } <= requested
        assert set(PROTOCOLS) <= {protocol for _, protocol in requested}
        assert parity.answered_by in (("plan", "plan+torch") if gpu else ("torch",)), (
            parity.why
        )


def infer_y(
    client: Client, model: str, position: SequencePosition, **inputs: np.ndarray
) -> np.ndarray:  # type: ignore[type-arg]
    return client.infer(model, inputs, position=position).outputs["y"]


def counter_total(
    client: Client,
    sequence: int | str,
    value: int,
    *,
    start: bool = False,
    end: bool = False,
) -> int:
    """The sum that the counter keeps, read from its output for the input element 1."""
    x = np.array([[1, value - 1, 0]])
    return int(
        infer_y(client, "counter", SequencePosition(sequence, start, end), x=x)[0, 0]
    )


def test_sequence_start_sets_the_initial_state(client: Client) -> None:
    one, other = next(IDS), f"stream-{next(IDS)}"
    assert counter_total(client, one, 5, start=True) == 1005
    assert counter_total(client, other, 7, start=True) == 1007
    assert [
        counter_total(client, one, 5),
        counter_total(client, other, 7),
        counter_total(client, one, 5),
    ] == [
        1010,
        1014,
        1015,
    ]
    assert counter_total(client, one, 1, start=True) == 1001
    assert counter_total(client, one, 1, end=True) == 1002
    assert counter_total(client, other, 7, end=True) == 1021


def test_requests_without_start_or_after_end_are_rejected(client: Client) -> None:
    sequence = next(IDS)
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        counter_total(client, sequence, 5)
    assert counter_total(client, sequence, 5, start=True, end=True) == 1005
    with pytest.raises(InferenceServerException, match="must specify the START flag"):
        counter_total(client, sequence, 5)
    with pytest.raises(InferenceServerException, match="correlation ID"):
        client.infer("counter", {"x": np.ones((1, 3), np.int64)})


def test_failed_request_leaves_the_state_unchanged(
    served: Served, client: Client
) -> None:
    sequence, module = next(IDS), models.module("recognizer")
    h, c = torch.from_numpy(np.load(served.models / "h0.npy")), torch.zeros(2, 1, 5)
    for number in range(3):
        x = torch.randn(1, 2, 6, generator=torch.Generator().manual_seed(number))
        with torch.no_grad():
            y, h, c = module(x, h, c)
        position = SequencePosition(sequence, number == 0, number == 2)
        np.testing.assert_allclose(
            infer_y(client, "recognizer", position, x=x.numpy()),
            y.numpy(),
            rtol=1e-4,
            atol=1e-5,
        )
        if number < 2:
            position = SequencePosition(sequence, False, False)
            with pytest.raises(InferenceServerException, match=r"\[1, 9, 6\]"):
                infer_y(client, "recognizer", position, x=TOO_LONG)


def test_failed_start_discards_the_sequence(client: Client) -> None:
    sequence, x = next(IDS), np.ones((1, 2, 6), np.float32)
    start = SequencePosition(sequence, True, False)
    infer_y(client, "recognizer", start, x=x)
    with pytest.raises(InferenceServerException, match=r"\[1, 9, 6\]"):
        infer_y(client, "recognizer", start, x=TOO_LONG)
    with pytest.raises(InferenceServerException, match="its start failed"):
        infer_y(client, "recognizer", SequencePosition(sequence, False, True), x=x)


def test_sequences_beyond_the_maximum_wait_and_complete(served: Served) -> None:
    """With `max: 2`, other starts wait until a sequence ends."""
    client = GrpcClient(served.grpc_url, 60)

    def run_sequence(number: int) -> list[int]:
        sequence = 10_000 + number
        return [
            counter_total(client, sequence, number, start=at == 0, end=at == 4)
            for at in range(5)
        ]

    with ThreadPoolExecutor(12) as pool:
        outputs = list(pool.map(run_sequence, range(1, 13)))
    client.close()
    assert outputs == [
        [1000 + number * (at + 1) for at in range(5)] for number in range(1, 13)
    ]


def test_client_passes_explicit_state_between_requests(
    served: Served, tmp_path: Path
) -> None:
    """Without server state, goldens are single requests and the client passes the state."""
    results = build_repository(
        served.models, tmp_path / "repository", serve_as="python", state="explicit"
    )
    assert all(result.ok for result in results), [
        str(result.error) for result in results
    ]
    with serve(
        tmp_path / "repository", **FREE_PORTS, client_shared_memory=True
    ) as server:
        for parity in verify(
            tmp_path / "repository", server.http_url, server.grpc_url, repeat=0
        ):
            assert parity.passed and {"p0-opt", "sequence-1.003"} <= {
                result.golden for result in parity.results
            }
        client = HttpClient(server.http_url, 30)
        module = models.module("recognizer")
        passed_state = {
            "h0": np.load(served.models / "h0.npy"),
            "c0": np.zeros((2, 1, 5), np.float32),
        }
        h, c = (torch.from_numpy(array) for array in passed_state.values())
        for number in range(4):
            x = torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(number))
            with torch.no_grad():
                y, h, c = module(x, h, c)
            output = client.infer(
                "recognizer", {"x": x.numpy(), **passed_state}
            ).outputs
            np.testing.assert_allclose(output["y"], y.numpy(), rtol=1e-4, atol=1e-5)
            passed_state = {"h0": output["hn"], "c0": output["cn"]}
        client.close()


def test_implicit_state_is_hidden_from_the_client(served: Served) -> None:
    for name in models.MODULES:
        sidecar = json.loads((served.repository / name / "trt-build.json").read_text())
        assert [
            tensor["name"] for tensor in (*sidecar["inputs"], *sidecar["outputs"])
        ] == [
            "x",
            "y",
        ]
        assert sidecar["state"]


def with_changed_golden(served: Served, folder: Path, name: str, number: int) -> Path:
    """A copy of a model with a changed output in the golden of one request."""
    shutil.copytree(served.repository / name, folder / name)
    file = folder / name / "goldens" / f"sequence-1.{number:03}.npz"
    golden = goldens.load_one(file)
    outputs = {**golden.outputs, "y": golden.outputs["y"] + 1}
    goldens.save([type(golden)(golden.name, golden.inputs, outputs)], file.parent)
    return folder


def test_one_wrong_output_fails_the_sequence(served: Served, tmp_path: Path) -> None:
    (parity,) = verify(
        with_changed_golden(served, tmp_path, "filter", 2),
        served.http_url,
        served.grpc_url,
    )
    failed = [result for result in parity.results if not result.passed]
    assert not parity.passed and {result.golden for result in failed} == {"sequence-1"}
    assert all("y@2" in text for result in failed for text in result.problems)


RUNTIME_CHANGES = {
    "state is lost": (
        'self._copy(outputs, state["output"])',
        'self.start[state["input"]]',
    ),
    "state is not reset": (
        "SEQUENCE_START:",
        "SEQUENCE_START and request.correlation_id() not in self.sequences:",
    ),
    "state is shared": ("request.correlation_id()", "0"),
}


@pytest.mark.parametrize("how", RUNTIME_CHANGES)
def test_verify_fails_for_wrong_state_handling(
    served: Served, tmp_path: Path, how: str
) -> None:
    shutil.copytree(served.repository / "filter", tmp_path / "repository" / "filter")
    runtime = (
        tmp_path / "repository" / "filter" / "1" / "trt_build_runtime" / "state.py"
    )
    old, new = RUNTIME_CHANGES[how]
    assert old in runtime.read_text()
    runtime.write_text(runtime.read_text().replace(old, new))
    reseal(tmp_path / "repository" / "filter")
    with serve(
        tmp_path / "repository", **FREE_PORTS, client_shared_memory=True
    ) as server:
        (parity,) = verify(tmp_path / "repository", server.http_url, server.grpc_url)
    assert not parity.passed
    wrong = {result.protocol for result in parity.results if not result.passed}
    assert wrong >= FAILED_PROTOCOLS[how]


FAILED_PROTOCOLS = {
    "state is lost": {"http", "grpc"},
    "state is not reset": {"http restarted", "grpc restarted"},
    "state is shared": {"http interleaved", "grpc interleaved"},
}
