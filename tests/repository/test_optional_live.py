"""Models with outputs that may be None on a real server: what is None is not in the response."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tritonclient import grpc, http

from builder.parity import verify
from builder.parity.structure import leaves
from builder.repository import build_repository
from builder.serving import serve
from tests.pipeline.optional_outputs import MODULES
from tests.pipeline.test_optional_outputs import inputs, save

pytestmark = [pytest.mark.live, pytest.mark.slow]

CLIENTS = {"http": http, "grpc": grpc}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, Any]]:
    folder = tmp_path_factory.mktemp("optional")
    for module in MODULES:
        save(folder / "models", module)
    results = build_repository(folder / "models", folder / "out")
    assert {one.name: str(one.error) for one in results if not one.ok} == {}
    with serve(folder / "out", http_port=0, grpc_port=0, metrics_port=0) as server:
        yield folder / "models", folder / "out", server


def test_verify_compares_which_outputs_an_answer_has(served: tuple[Path, Path, Any]) -> None:
    _, repository, server = served
    found = verify(repository, server.http_url, server.grpc_url, repeat=0)
    assert {one.name: one.problems for one in found if not one.passed} == {}
    assert len(found) == len(MODULES)


@pytest.mark.parametrize("protocol", CLIENTS)
@pytest.mark.parametrize("asks", [False, True], ids=["all outputs", "outputs by name"])
def test_as_numpy_gives_none(served: tuple[Path, Path, Any], protocol: str, asks: bool) -> None:
    models, _, server = served
    library: Any = CLIENTS[protocol]
    client = library.InferenceServerClient(getattr(server, f"{protocol}_url"))
    for module in MODULES:
        name = module.__name__.lower()
        original = torch.jit.load(str(models / f"{name}.pt")).eval()
        config = client.get_model_config(name)
        names = [o["name"] if protocol == "http" else o.name for o in _outputs(config)]
        wanted = [library.InferRequestedOutput(one) for one in names] if asks else None
        for x in inputs():
            given = library.InferInput("x", list(x.shape), "FP32").set_data_from_numpy(x.numpy())
            answer = client.infer(name, [given], outputs=wanted)
            with torch.no_grad():
                expected = dict(leaves(original(x)))
            for output in names:
                got = answer.as_numpy(output)
                assert (got is None) == (output not in expected), (name, output)
                if got is not None:
                    np.testing.assert_allclose(got, expected[output].numpy(), rtol=1e-5, atol=1e-5)
    client.close()


def _outputs(config: Any) -> Any:
    return config["output"] if isinstance(config, dict) else config.config.output


def test_requests_at_once_are_answered_each_by_its_own_path(
    served: tuple[Path, Path, Any],
) -> None:
    _, _, server = served
    client = http.InferenceServerClient(server.http_url, concurrency=8)
    sent = []
    for rows in (1, 4) * 16:
        x = np.ones((rows, 4), np.float32)
        given = http.InferInput("x", list(x.shape), "FP32").set_data_from_numpy(x)
        sent.append((rows, client.async_infer("bysize", [given])))
    for rows, request in sent:
        answer = request.get_result().as_numpy("output_1")
        assert (answer is None) == (rows > 2)
    client.close()
