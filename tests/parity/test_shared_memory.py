"""verify through shared memory: the same answers, and afterwards neither the server nor the host
has a region.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc, http

from builder.engine import gpu
from builder.errors import EnvironmentProblem, UsageError
from builder.parity import verify
from builder.triton import Golden, goldens
from tests.parity.conftest import Endpoint

pytestmark = pytest.mark.live


def files(pid: int = os.getpid()) -> list[Path]:
    return list(Path("/dev/shm").glob(f"trt-build-tensor-{pid}-*"))


def registered(endpoint: Endpoint, kind: str = "system") -> Any:
    client = http.InferenceServerClient(endpoint.http_url)
    status = getattr(client, f"get_{kind}_shared_memory_status")()
    client.close()
    return status


def test_every_model_gives_the_same_answers_through_system_shared_memory(
    endpoint: Endpoint,
) -> None:
    results = verify(
        endpoint.repository, endpoint.http_url, endpoint.grpc_url, shared_memory=["system"]
    )
    for parity in results:
        assert parity.passed, (parity.name, parity.problems, [r.problems for r in parity.results])
        assert {r.protocol for r in parity.results} == {"http system", "grpc system"}
        assert len(parity.results) == 2 * len(endpoint.artifacts[parity.name].goldens)
    assert registered(endpoint) == [] and not files()


def test_several_ways_in_one_run(endpoint: Endpoint) -> None:
    (parity,) = verify(
        endpoint.repository, None, endpoint.grpc_url, ["scorer"], shared_memory=["none", "system"]
    )
    assert parity.passed
    assert {r.protocol for r in parity.results} == {"grpc", "grpc x16", "grpc system"}


def test_a_wrong_value_is_seen_there_too(endpoint: Endpoint) -> None:
    x = np.ones((2, 3), np.float32)
    wrong = Golden("wrong", {"x": x}, {"y": x * 2 + 2})
    (parity,) = verify(
        endpoint.repository,
        endpoint.http_url,
        None,
        ["unbatched"],
        extra={"unbatched": [wrong]},
        shared_memory=["system"],
    )
    assert {r.golden for r in parity.results if not r.passed} == {"wrong"}
    assert "3.0 instead of 4.0" in next(r for r in parity.results if not r.passed).problems[0]


def test_an_answer_that_is_larger_than_the_golden_is_the_servers_refusal(
    endpoint: Endpoint, tmp_path: Path
) -> None:
    shutil.copytree(endpoint.repository / "unbatched", tmp_path / "unbatched")
    folder = tmp_path / "unbatched" / "goldens"
    golden = goldens.load_one(folder / "p0-opt.npz")
    goldens.save([Golden(golden.name, golden.inputs, {"y": golden.outputs["y"][:1]})], folder)
    (parity,) = verify(tmp_path, endpoint.http_url, endpoint.grpc_url, shared_memory=["system"])
    failed = [r for r in parity.results if not r.passed]
    assert [r.golden for r in failed] == ["p0-opt", "p0-opt"]
    assert all("shared memory size" in (r.error or "") for r in failed)
    assert registered(endpoint) == [] and not files()


def test_an_unknown_kind_is_usage(endpoint: Endpoint) -> None:
    with pytest.raises(UsageError, match="'posix'"):
        verify(endpoint.repository, endpoint.http_url, None, shared_memory=["posix"])


@pytest.mark.skipif(gpu.driver() is not None, reason="there is a GPU")
def test_without_a_gpu_cuda_shared_memory_is_an_environment_problem(endpoint: Endpoint) -> None:
    with pytest.raises(EnvironmentProblem, match="needs a GPU"):
        verify(endpoint.repository, endpoint.http_url, None, shared_memory=["cuda"])


@pytest.mark.parametrize("protocol", ["url", "grpc-url"])
def test_ctrl_c_takes_the_regions_back(endpoint: Endpoint, protocol: str) -> None:
    """The command is interrupted while a golden of it is registered; the request that runs is let
    go.
    """
    words = [
        "verify",
        str(endpoint.repository),
        "--only",
        "scorer",
        "--shared-memory",
        "system",
        "--repeat",
        "100000",
    ]
    address = endpoint.http_url if protocol == "url" else endpoint.grpc_url
    program = "from builder.cli import main; main(prog_name='trt-build')"
    process = subprocess.Popen(
        [sys.executable, "-c", program, *words, f"--{protocol}", address],
        stderr=subprocess.PIPE,
        text=True,
    )
    client = grpc.InferenceServerClient(endpoint.grpc_url)
    try:
        until = time.monotonic() + 60
        while not client.get_system_shared_memory_status().regions:
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        assert files(process.pid)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130, said
        assert not client.get_system_shared_memory_status().regions and not files(process.pid)
    finally:
        process.kill()
        client.close()
