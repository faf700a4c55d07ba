"""Models on a real server whose number of outputs depends on the data: outputs that may be None,
which the response omits, and lists of unknown length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from builder.parity import verify
from builder.parity.structure import length_of
from builder.repository import build_repository
from builder.serving import FREE_PORTS, Server, serve
from tests.pipeline import optional_outputs
from tests.pipeline.list_outputs import CONTAINERS, LARGEST, LISTS
from tests.pipeline.test_list_outputs import declared
from tests.pipeline.test_optional_outputs import requests, save

pytestmark = [pytest.mark.live, pytest.mark.slow]

CLIENTS = {"http": http, "grpc": grpc}
MODULES: dict[str, tuple[type[nn.Module], ...]] = {
    "optional": optional_outputs.MODULES,
    "lists": (*LISTS, *CONTAINERS),
}


@dataclass(frozen=True)
class Served:
    """The modules, the folder of their models, the repository, and its server."""

    modules: tuple[type[nn.Module], ...]
    models: Path
    repository: Path
    server: Server


@pytest.fixture(scope="module", params=MODULES)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    folder, modules = tmp_path_factory.mktemp(request.param), MODULES[request.param]
    for module in modules:
        save(folder / "models", module, declared(module))
    results = build_repository(folder / "models", folder / "out")
    assert {one.name: str(one.error) for one in results if not one.ok} == {}
    with serve(folder / "out", **FREE_PORTS) as server:
        yield Served(modules, folder / "models", folder / "out", server)


def test_verify_compares_the_present_outputs(served: Served) -> None:
    server = served.server
    results = verify(served.repository, server.http_url, server.grpc_url, repeat=0)
    assert {one.name: one.problems for one in results if not one.passed} == {}
    assert len(results) == len(served.modules)


def output_names(client: Any, model: str) -> list[str]:
    """The names of the model's outputs in the server's config."""
    config = client.get_model_config(model)
    if isinstance(config, dict):
        return [output["name"] for output in config["output"]]
    return [output.name for output in config.config.output]


def assert_present(
    response: Any, names: list[str], expected: Mapping[str, torch.Tensor], model: str
) -> None:
    """Raise AssertionError unless the response has the expected outputs, and None for others."""
    for output in names:
        got = response.as_numpy(output)
        assert (got is None) == (output not in expected), (model, output)
        if got is not None:
            np.testing.assert_allclose(
                got, expected[output].numpy(), rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("protocol", CLIENTS)
@pytest.mark.parametrize(
    "by_name", [False, True], ids=["all outputs", "outputs by name"]
)
def test_response_contains_the_outputs_that_are_present(
    served: Served, protocol: str, by_name: bool
) -> None:
    """`as_numpy` returns None for the others. A list that is too long is an error."""
    library: Any = CLIENTS[protocol]
    client = library.InferenceServerClient(getattr(served.server, f"{protocol}_url"))
    too_long = set()
    for module in served.modules:
        name = module.__name__.lower()
        original = torch.jit.load(str(served.models / f"{name}.pt")).eval()
        names = output_names(client, name)
        requested = [library.InferRequestedOutput(one) for one in names]
        more = {"outputs": requested} if by_name else {}
        for x, expected in requests(original):
            sent = library.InferInput("x", list(x.shape), "FP32")
            sent.set_data_from_numpy(x.numpy())
            if length_of(expected, LISTS.get(module, "")) > LARGEST:
                too_long.add(module)
                with pytest.raises(
                    InferenceServerException, match="increase max_lengths"
                ) as raised:
                    client.infer(name, [sent], **more)
                assert raised.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
            else:
                response = client.infer(name, [sent], **more)
                assert_present(response, names, expected, name)
    client.close()
    assert bool(too_long) == (served.modules == MODULES["lists"])


@pytest.mark.parametrize("served", ["optional"], indirect=True)
def test_concurrent_requests_take_independent_branches(served: Served) -> None:
    client = http.InferenceServerClient(served.server.http_url, concurrency=8)
    sent = []
    for rows in (1, 4) * 16:
        x = np.ones((rows, 4), np.float32)
        input_tensor = http.InferInput("x", list(x.shape), "FP32").set_data_from_numpy(
            x
        )
        sent.append((rows, client.async_infer("bysize", [input_tensor])))
    for rows, request in sent:
        response = request.get_result().as_numpy("output_1")
        assert (response is None) == (rows > 2)
    client.close()
