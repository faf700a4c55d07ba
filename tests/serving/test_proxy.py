"""docker/nginx.conf before a live server: valid requests pass, and harmful ones are refused."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tritonclient import http as triton_http

from builder.serving import FREE_PORTS, Server, serve
from builder.serving.ports import resolve

CONFIG = Path(__file__).parents[2] / "docker" / "nginx.conf"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(
        NGINX is None and "TRT_BUILD_NGINX" not in os.environ,
        reason="nginx is not installed (apt-get install nginx-light)",
    ),
]


@pytest.fixture(scope="module")
def server(valid_repository: Path) -> Iterator[Server]:
    with serve(valid_repository, **FREE_PORTS) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an nginx with the published configuration, in front of the server."""
    folder = tmp_path_factory.mktemp("nginx")
    port = resolve("127.0.0.1", {"proxy": 0})["proxy"]
    text = CONFIG.read_text().replace("/tmp/trt-build-nginx", f"{folder}/nginx")
    text = text.replace("127.0.0.1:8000", server.http_url).replace(
        "8080", f"127.0.0.1:{port}"
    )
    if os.geteuid() == 0:  # otherwise its workers cannot write to the test's folder
        text = f"user root;\n{text}"
    (folder / "nginx.conf").write_text(text)
    command = [str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf")]
    subprocess.run([*command, "-t"], check=True, capture_output=True)
    process = subprocess.Popen([*command, "-g", "daemon off;"])
    try:
        address = f"127.0.0.1:{port}"
        deadline = time.monotonic() + 20
        while _status(address, "GET", "/v2/health/ready") != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(20)


def _status(
    address: str, method: str, path: str, body: bytes = b"", **headers: str
) -> int:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def _infers(address: str) -> bool:
    """Whether the endpoint at the address returns correct outputs for a binary request."""
    with triton_http.InferenceServerClient(address) as client:
        x = triton_http.InferInput("x", [2, 3], "FP32")
        x.set_data_from_numpy(np.ones((2, 3), np.float32))
        ids = triton_http.InferInput("ids", [2, 1], "INT64")
        ids.set_data_from_numpy(np.zeros((2, 1), np.int64))
        scores = client.infer("scorer", [x, ids]).as_numpy("scores")
    return bool(scores.shape[0] == 2 and np.isfinite(scores).all())


def test_binary_and_json_requests_pass(proxy: str) -> None:
    assert _infers(proxy)
    tensors = [
        {"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [1.0, 2.0, 3.0]},
        {"name": "ids", "datatype": "INT64", "shape": [1, 1], "data": [0]},
    ]
    body = json.dumps({"inputs": tensors}).encode()
    assert _status(proxy, "POST", "/v2/models/scorer/infer", body) == 200
    assert _status(proxy, "GET", "/v2/models/scorer/config") == 200


def test_requests_that_crash_triton_are_refused(proxy: str, server: Server) -> None:
    path = "/v2/models/scorer/infer"
    nested = b"[" * 200_000
    assert _status(proxy, "POST", path, nested) == 413
    length = {"Inference-Header-Content-Length": str(len(nested))}
    assert _status(proxy, "POST", path, nested, **length) == 413
    assert _status(proxy, "POST", path, b"[" * 8000) in (400, 500)
    assert _status_of_chunks(proxy, path, 600_000) in (400, 413)
    assert server.process.poll() is None and _infers(proxy)


def _status_of_chunks(address: str, path: str, count: int) -> int:
    """The status for a body of `count` chunks of one byte."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        connection.putrequest("POST", path)
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        connection.send(b"1\r\n \r\n" * count + b"0\r\n\r\n")
        return connection.getresponse().status
    except OSError:
        return 413  # nginx closes the connection when the body is too long
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/repository/models/scorer/unload"),
        ("POST", "/v2/repository/index"),
        ("POST", "/v2/systemsharedmemory/region/a/register"),
        ("POST", "/v2/trace/setting"),
        ("POST", "/v2/logging"),
        ("POST", "/v2/models/scorer/stats"),
        ("GET", "/v2/models/scorer/infer/../../../repository/index"),
    ],
)
def test_control_endpoints_are_refused(proxy: str, method: str, path: str) -> None:
    assert _status(proxy, method, path, b"{}") in (400, 403, 404)
