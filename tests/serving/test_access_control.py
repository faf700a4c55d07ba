"""Clients cannot change the server without a key."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient import grpc as triton_grpc
from tritonclient.utils import InferenceServerException

from builder.parity import verify
from builder.serving import FREE_PORTS, Server, serve

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(valid_repository: Path) -> Iterator[Server]:
    with serve(valid_repository, **FREE_PORTS) as running:
        yield running


@pytest.mark.parametrize(
    "path",
    [
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/scorer/trace/setting",
        "/v2/systemsharedmemory/region/a/register",
        "/v2/cudasharedmemory/region/a/register",
    ],
)
def test_http_control_endpoint_requires_a_key(server: Server, path: str) -> None:
    for headers in ({}, {"trt-build": ""}, {"trt-build": "0" * 32}):
        connection = http.client.HTTPConnection(server.http_url, timeout=20)
        connection.request("POST", path, b"{}", headers)
        response = connection.getresponse()
        assert (response.status, b"restricted" in response.read()) == (403, True)
        connection.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda client: client.update_log_settings({"log_file": "/tmp/x"}),
        lambda client: client.update_trace_settings(
            settings={"trace_level": ["TIMESTAMPS"]}
        ),
        lambda client: client.register_system_shared_memory("a", "/a", 4),
        lambda client: client.register_cuda_shared_memory("a", b"", 0, 4),
    ],
    ids=["log", "trace", "system memory", "CUDA memory"],
)
def test_grpc_control_call_requires_a_key(
    server: Server, change: Callable[[Any], Any]
) -> None:
    with (
        triton_grpc.InferenceServerClient(server.grpc_url) as client,
        pytest.raises(InferenceServerException, match="restricted"),
    ):
        change(client)


def test_clients_cannot_load_or_unload_models(server: Server) -> None:
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        for act in (client.load_model, client.unload_model):
            with pytest.raises(InferenceServerException, match="is not allowed"):
                act("scorer")
        assert client.is_model_ready("scorer")


def test_inference_config_and_statistics_need_no_key(server: Server) -> None:
    with triton_grpc.InferenceServerClient(server.grpc_url) as client:
        x = triton_grpc.InferInput("x", [2, 3], "FP32")
        x.set_data_from_numpy(np.ones((2, 3), np.float32))
        ids = triton_grpc.InferInput("ids", [2, 1], "INT64")
        ids.set_data_from_numpy(np.zeros((2, 1), np.int64))
        scores = client.infer("scorer", [x, ids]).as_numpy("scores")
        assert np.isfinite(scores).all()
        assert client.get_model_config("scorer") and client.get_inference_statistics(
            "scorer"
        )


def test_refused_shared_memory_names_the_option(
    server: Server, valid_repository: Path
) -> None:
    (parity,) = verify(
        valid_repository, server.http_url, None, repeat=0, shared_memory=["system"]
    )
    assert not parity.passed
    assert "trt-build serve --allow-client-shm" in str(parity.as_dict())
