"""Hostile requests to one running tritonserver, which must return correct outputs after each.

Requests that are known to end Triton 24.10 are left out: JSON of about 10,000 nested lists, and a
body of several 100,000 chunks (docs/security.md).
"""

from __future__ import annotations

import http.client
import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.hostile.counts import EXECUTED, UNEXPECTED, Counts
from tests.hostile.manifests import Small
from tests.hostile.repositories import MODEL

SECONDS = 20
INFER = f"/v2/models/{MODEL}/infer"
Request = tuple[str, str, bytes, dict[str, str]]
"""Method, path, body and headers."""
VALUES: tuple[Any, ...] = (
    *UNEXPECTED,
    *("../..", [], {}, [[]], [None]),
    *(["a"], [-1, 4], [2**40, 2**40], [0, 4], [2], "BYTES", "FP64", {"a": {"b": []}}),
)


def valid() -> dict[str, Any]:
    """The valid request, whose output is known."""
    data = [float(n) for n in range(8)]
    return {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 4], "data": data}]
    }


def _post(data: Any, path: str = INFER, **headers: str) -> Request:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    return "POST", path, body, {"Content-Type": "application/json", **headers}


def change_value(chance: random.Random) -> Request:
    """Another value in the request."""
    data = valid()
    tensor = data["inputs"][0]
    target = chance.choice([*tensor, "inputs", "outputs", "parameters", "id"])
    owner = tensor if target in tensor else data
    owner[target] = chance.choice(VALUES)
    return _post(data)


def change_data(chance: random.Random) -> Request:
    """Values that do not match the tensor's shape or dtype."""
    data = valid()
    data["inputs"][0]["data"] = chance.choice(
        (
            [],
            [1.0],
            [[1.0] * 4] * 3,
            ["NaN"] * 8,
            [None] * 8,
            [1e400] * 8,
            [[[1.0]]],
            [{}] * 8,
        )
    )
    return _post(data)


def repeat(chance: random.Random) -> Request:
    """Repeated inputs or outputs, or unknown outputs."""
    data = valid()
    if chance.random() < 0.5:
        data["inputs"] = data["inputs"] * chance.choice((2, 100))
    else:
        name = chance.choice(("y", "x", "../y", "", "y" * 1000))
        data["outputs"] = [{"name": name}] * chance.choice((1, 2, 100))
    return _post(data)


def no_json(chance: random.Random) -> Request:
    text = json.dumps(valid()).encode()
    return _post(
        chance.choice(
            (
                b"",
                b"[]",
                b"null",
                b"\xff\xfe",
                b"[" * 500,
                b'{"a":' * 500,
                b'"' + b"x" * 200_000,
                text[: chance.randrange(len(text))],
                text + text,
                b"9" * 100_000,
                text.replace(b"2, 4", b"2e999, 4"),
            )
        )
    )


def binary(chance: random.Random) -> Request:
    """Binary tensors of wrong sizes."""
    data = valid()
    tensor = data["inputs"][0]
    del tensor["data"]
    tensor["parameters"] = {
        "binary_data_size": chance.choice((0, 1, 31, 32, 2**31, 2**63, -1))
    }
    header_json = json.dumps(data).encode()
    length = chance.choice((len(header_json), 0, -1, 1, 10**9, "x"))
    body = header_json + struct.pack("8f", *range(8))[: chance.choice((0, 5, 32))]
    return _post(body, **{"Inference-Header-Content-Length": str(length)})


def shared_memory(chance: random.Random) -> Request:
    """A region of shared memory without permission."""
    data = valid()
    tensor = data["inputs"][0]
    if chance.random() < 0.5:
        del tensor["data"]
        name = chance.choice(("region", "../../etc/passwd", ""))
        tensor["parameters"] = {
            "shared_memory_region": name,
            "shared_memory_byte_size": 2**40,
        }
        return _post(data)
    key = chance.choice(("/../../etc/passwd", "/x", "", "/" + "k" * 300))
    registration = {
        "key": key,
        "offset": chance.choice((0, -1, 2**63)),
        "byte_size": 2**40,
    }
    return _post(registration, "/v2/systemsharedmemory/region/evil/register")


def control(chance: random.Random) -> Request:
    """Changes of the server's settings and models."""
    log = {
        "log_file": chance.choice(("/tmp/../{victim}", "{victim}")),
        "log_info": True,
    }
    config = {
        "parameters": {"config": json.dumps({"backend": "python", "name": "evil"})}
    }
    files = {"parameters": {"config": "{}", "file:1/model.py": "aW1wb3J0IG9z"}}
    unload = {"parameters": {"unload_dependents": True}}
    trace = {"trace_file": "{victim}", "trace_level": ["TIMESTAMPS"], "trace_rate": "1"}
    path, data = chance.choice(
        (
            ("/v2/logging", log),
            ("/v2/repository/models/evil/load", config),
            ("/v2/repository/models/evil/load", files),
            (f"/v2/repository/models/{MODEL}/unload", unload),
            ("/v2/repository/index", {"ready": "x" * 1000}),
            ("/v2/trace/setting", trace),
            (f"/v2/models/{MODEL}/trace/setting", trace),
        )
    )
    return _post(data, path)


def path(chance: random.Random) -> Request:
    target = chance.choice(
        (
            "/v2/models/../../etc/passwd",
            f"/v2/models/{MODEL}/versions/99999999999999999999/infer",
            f"/v2/models/{MODEL}/versions/-1/infer",
            "/v2/models/%00/infer",
            "/v2/models/" + "m" * 8000 + "/infer",
            "/v2/models/%2e%2e%2f%2e%2e/config",
            "//" * 2000,
            f"/v2/models/{MODEL}/generate",
            "/v2/models/nothing/infer",
        )
    )
    method, _, body, headers = _post(valid(), target)
    return (
        chance.choice((method, "GET", "PUT", "DELETE", "PATCH", "X" * 100)),
        target,
        body,
        headers,
    )


def header(chance: random.Random) -> Request:
    more = chance.choice(
        (
            {"Content-Encoding": "gzip"},
            {"Content-Encoding": "deflate"},
            {"Content-Encoding": "unknown"},
            {"Accept-Encoding": "gzip;q=-1," * 100},
            {"Content-Type": "application/octet-stream"},
            {"X-Long": "x" * 60_000},
            {"Transfer-Encoding": "unknown"},
            {"Expect": "100-continue"},
        )
    )
    return _post(valid(), **more)


REQUESTS: tuple[Callable[[random.Random], Request], ...] = (
    *(change_value, change_value, change_data, repeat, no_json, binary, shared_memory),
    *(control, path, header),
)


def run(
    repository: Path, folder: Path, count: int, first_seed: int, counts: Counts
) -> None:
    """Send `count` requests, one after another, to one server of the repository."""
    from builder import serving

    victim = folder / "watched" / "victim.txt"
    torch.manual_seed(0)
    x = torch.arange(8.0).reshape(2, 4)
    expected = Small().eval()(x).detach()
    with serving.serve(repository, **serving.FREE_PORTS) as server:
        for seed in range(first_seed, first_seed + count):
            chance = random.Random(seed)
            create = chance.choice(REQUESTS)
            method, target, body, headers = create(chance)
            body = body.replace(b"{victim}", str(victim).encode())
            request = (method, target, body, headers)
            outcome, message = _outcome(server, request, expected)
            counts.add(create.__name__, outcome, f"seed {seed}: {message}")
            if server.process.poll() is not None:
                return
    assert EXECUTED  # the caller watches the folder


def _outcome(server: Any, request: Request, expected: torch.Tensor) -> tuple[str, str]:
    """The outcome of the request. The server must return correct outputs afterwards."""
    try:
        status, text = _send(server.http_url, request)
    except TimeoutError:
        return "hangs", f"{request[1]}: no answer within {SECONDS} s"
    except (OSError, http.client.HTTPException, ValueError) as error:
        status, text = (
            400,
            str(error),
        )  # the server closed the connection, or the client refuses
    if server.process.poll() is not None:
        return "exit_70", f"the server ended: {request[:2]} {request[2][:200]!r}"
    after = _is_correct(_send(server.http_url, _post(valid()))[1], expected)
    if after is not True:
        return (
            "wrong_outputs",
            f"after {request[:2]} {request[2][:200]!r}: wrong outputs",
        )
    if status == 200 and request[1] == INFER and _is_valid(request[2]):
        return (
            "accepted_correct" if _is_correct(text, expected) else "wrong_outputs"
        ), text
    return ("accepted_correct" if status == 200 else "refused"), text


def _is_valid(body: bytes) -> bool:
    """Whether the body has the inputs of the valid request."""
    try:
        request = json.loads(body)["inputs"]
    except (ValueError, KeyError, TypeError):
        return False
    return bool(request == valid()["inputs"])


def _is_correct(text: str, expected: torch.Tensor) -> bool:
    try:
        data = json.loads(text)["outputs"][0]["data"]
    except (ValueError, KeyError, IndexError, TypeError):
        return False
    return torch.allclose(torch.tensor(data).reshape(2, 3), expected, atol=1e-4)


def _send(url: str, request: Request) -> tuple[int, str]:
    method, target, body, headers = request
    connection = http.client.HTTPConnection(url, timeout=SECONDS)
    try:
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    finally:
        connection.close()
