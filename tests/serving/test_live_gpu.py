"""A repository served on the GPU by the Python runtime, over every protocol and shared memory.

A wrapper around the published model.py logs the inputs and outputs of the runtime.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tritonclient import grpc

from builder.parity import verify
from builder.parity.shared_memory import Regions
from builder.repository import build_repository
from builder.serving import FREE_PORTS, Server, serve
from builder.triton import Golden
from tests.parity.asserting import TWO_PROFILES, assert_passed
from tests.triton.artifacts import reseal

pytestmark = [pytest.mark.gpu, pytest.mark.live]

MANIFEST = """\
inputs:
  - {name: x, dtype: float32, shape: [batch, 3, side, side]}
profiles:
  - {batch: {min: 1, opt: 1, max: 1}, side: {min: 8, opt: 16, max: 16}}
  - {batch: {min: 1, opt: 4, max: 8}, side: {min: 8, opt: 16, max: 32}}
outputs: [scores, best]
instances: 2
batching: {max_queue_delay_us: 5000}
"""

WRAPPER = """
import importlib.util, json, os
from pathlib import Path
spec = importlib.util.spec_from_file_location("trt_build_runtime", Path(__file__).with_name("runtime.py"))
runtime = importlib.util.module_from_spec(spec)
spec.loader.exec_module(runtime)

class TritonPythonModel(runtime.TritonPythonModel):
    def execute(self, requests):
        inputs = [tensor.is_cpu() for request in requests for tensor in request.inputs()]
        responses = super().execute(requests)
        outputs = [tensor.is_cpu() for response in responses for tensor in response.output_tensors()]
        engine = self.executor.engine
        graphs = [call.graph is not None for call in engine.bound.values()]
        entry = {"pid": os.getpid(), "requests": len(requests), "inputs_on_cpu": inputs, "outputs_on_cpu": outputs,
                "graphs": graphs,
                "stream": self.executor.stream.cuda_stream,
                "buffers": [buffer.storage.data_ptr() for buffer in engine.buffers.values()]}
        with open(os.environ["TRT_BUILD_TEST_LOG"], "a") as log:
            log.write(json.dumps(entry) + chr(10))
        return responses
"""


class Scores(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.head = (
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.Linear(8, 5),
        )

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.head(self.convolution(x).relu().mean((2, 3)))
        return scores, scores > 0


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("live-gpu") / "models"
    models.mkdir()
    torch.jit.script(Scores().eval()).save(str(models / "scores.pt"))
    (models / "scores.yaml").write_text(MANIFEST)
    out = models.parent / "repository"
    (result,) = build_repository(models, out, serve_as="python", isolate=False)
    assert result.ok, result.error
    version = out / "scores" / "1"
    (version / "model.py").rename(version / "runtime.py")
    (version / "model.py").write_text(WRAPPER)
    reseal(version.parent)
    return out


@pytest.fixture(scope="module")
def log(repository: Path) -> Path:
    return repository.parent / "runtime.jsonl"


@pytest.fixture(scope="module")
def server(repository: Path, log: Path) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRT_BUILD_TEST_LOG", str(log))
        with serve(repository, **FREE_PORTS, client_shared_memory=True) as running:
            yield running


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    connected = grpc.InferenceServerClient(server.grpc_url)
    yield connected
    connected.close()


def golden(batch: int, side: int, seed: int) -> Golden:
    x = torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(seed))
    scores, best = Scores().eval()(x)
    return Golden(
        f"{batch}x{side}",
        {"x": x.numpy()},
        {"scores": scores.detach().numpy(), "best": best.numpy()},
    )


def check_request(
    client: Any, kind: str, one: Golden, log: Path
) -> list[dict[str, Any]]:
    """Check the response of a request and return the log of the runtime."""
    log.unlink(missing_ok=True)
    with Regions(kind, client, one) as regions:
        result = client.infer(
            "scores", regions.inputs(grpc), outputs=regions.outputs(grpc)
        )
        found = {
            o.name: regions.read(o.name, o.datatype, o.shape)
            for o in result.get_response().outputs
        }
    np.testing.assert_allclose(
        found["scores"], one.outputs["scores"], rtol=1e-3, atol=1e-4
    )
    np.testing.assert_array_equal(found["best"], one.outputs["best"])
    return [json.loads(line) for line in log.read_text().splitlines()]


@pytest.mark.parametrize("memory", ["none", "system", "cuda"])
def test_every_golden_passes_with_every_kind_of_memory(
    repository: Path, server: Server, memory: str
) -> None:
    (parity,) = verify(
        repository, server.http_url, server.grpc_url, repeat=2, shared_memory=[memory]
    )
    assert_passed(parity)
    assert (parity.answered_by, parity.device) == ("plan", "cuda:0"), parity.why
    assert {r.golden for r in parity.results} >= {"p0-min", *TWO_PROFILES}


def test_no_region_remains_registered(client: Any) -> None:
    assert not client.get_cuda_shared_memory_status().regions
    assert not client.get_system_shared_memory_status().regions


def test_gpu_inputs_give_gpu_outputs(client: Any, log: Path) -> None:
    (lines,) = check_request(client, "cuda", golden(4, 16, 1), log)
    assert lines["inputs_on_cpu"] == [False] and lines["outputs_on_cpu"] == [
        False,
        False,
    ]
    (lines,) = check_request(client, "system", golden(4, 16, 2), log)
    assert lines["inputs_on_cpu"] == [True] and lines["outputs_on_cpu"] == [True, True]


def test_each_instance_has_its_stream_and_reuses_its_buffers(
    client: Any, log: Path
) -> None:
    lines = [
        line
        for seed in range(12)
        for line in check_request(client, "cuda", golden(8, 16 + seed, seed), log)
    ]
    for pid in {line["pid"] for line in lines}:
        own = [line for line in lines if line["pid"] == pid]
        assert len({line["stream"] for line in own}) == 1 and own[0]["stream"] != 0
        assert len({tuple(line["buffers"]) for line in own}) == 1


def test_gpu_requests_are_batched_on_the_gpu(client: Any, log: Path) -> None:
    """Sixteen concurrent requests, of which some are batched. Each response has its own rows."""
    from concurrent.futures import ThreadPoolExecutor
    from contextlib import ExitStack

    requests = [golden(2, 16, seed) for seed in range(16)]
    log.unlink(missing_ok=True)
    with ExitStack() as stack, ThreadPoolExecutor(16) as pool:
        regions = [
            stack.enter_context(Regions("cuda", client, one)) for one in requests
        ]
        for _ in range(5):
            sent = [
                pool.submit(
                    client.infer, "scores", one.inputs(grpc), outputs=one.outputs(grpc)
                )
                for one in regions
            ]
            for one, expected, response in zip(regions, requests, sent, strict=True):
                outputs = response.result().get_response().outputs
                found = {o.name: one.read(o.name, o.datatype, o.shape) for o in outputs}
                np.testing.assert_allclose(
                    found["scores"], expected.outputs["scores"], rtol=1e-3, atol=1e-4
                )
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert max(line["requests"] for line in lines) > 1
    assert not any(on_cpu for line in lines for on_cpu in line["outputs_on_cpu"])


def test_repeated_calls_use_graphs_and_shapes_may_change(
    client: Any, log: Path
) -> None:
    """First enough calls with different data that both instances capture a graph, then calls with
    alternating shapes and profiles.
    """
    lines = [
        line
        for seed in range(100)
        for line in check_request(client, "cuda", golden(4, 16, seed), log)
    ]
    assert any(any(line["graphs"]) for line in lines), "no call became a graph"
    assert sum(any(line["graphs"]) for line in lines) > 20
    for seed in range(3):
        for batch, side in ((4, 16), (8, 32), (1, 16), (4, 16), (2, 8), (1, 8)):
            for again in range(2):
                for memory in ("cuda", "system"):
                    check_request(
                        client,
                        memory,
                        golden(batch, side, 1000 + 10 * seed + again),
                        log,
                    )
    lines = [
        line
        for seed in range(100)
        for line in check_request(client, "system", golden(8, 32, seed), log)
    ]
    assert any(any(line["graphs"]) for line in lines), (
        "no call with inputs in system memory became a graph"
    )
