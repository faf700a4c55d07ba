"""Models that return a list of unknown length on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from builder.parity import verify
from builder.parity.structure import leaves, length_of
from builder.repository import build_repository
from builder.serving import serve
from tests.pipeline.list_outputs import CONTAINERS, LARGEST, LISTS
from tests.pipeline.test_list_outputs import declared
from tests.pipeline.test_optional_outputs import inputs, save

pytestmark = [pytest.mark.live, pytest.mark.slow]

CLIENTS = {"http": http, "grpc": grpc}
MODULES = (*LISTS, *CONTAINERS)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path, Any]]:
    folder = tmp_path_factory.mktemp("lists")
    for module in MODULES:
        save(folder / "models", module, declared(module))
    results = build_repository(folder / "models", folder / "out")
    assert {one.name: str(one.error) for one in results if not one.ok} == {}
    with serve(folder / "out", http_port=0, grpc_port=0, metrics_port=0) as server:
        yield folder / "models", folder / "out", server


def test_verify_compares_the_number_and_the_values(served: tuple[Path, Path, Any]) -> None:
    _, repository, server = served
    found = verify(repository, server.http_url, server.grpc_url, repeat=0)
    assert {one.name: one.problems for one in found if not one.passed} == {}
    assert len(found) == len(MODULES)


@pytest.mark.parametrize("protocol", CLIENTS)
def test_a_response_has_the_elements_of_the_list(
    served: tuple[Path, Path, Any], protocol: str
) -> None:
    models, _, server = served
    library: Any = CLIENTS[protocol]
    client = library.InferenceServerClient(getattr(server, f"{protocol}_url"))
    lengths = set()
    for module in MODULES:
        name = module.__name__.lower()
        original = torch.jit.load(str(models / f"{name}.pt")).eval()
        config = client.get_model_config(name)
        outputs = config["output"] if isinstance(config, dict) else config.config.output
        names = [o["name"] if isinstance(o, dict) else o.name for o in outputs]
        for x in inputs():
            given = library.InferInput("x", list(x.shape), "FP32").set_data_from_numpy(x.numpy())
            with torch.no_grad():
                expected = dict(leaves(original(x.clone())))
            length = length_of(expected, LISTS.get(module, ""))
            lengths.add(length)
            if length > LARGEST:
                with pytest.raises(InferenceServerException, match="increase max_lengths"):
                    client.infer(name, [given])
                continue
            answer = client.infer(name, [given])
            for output in names:
                got = answer.as_numpy(output)
                assert (got is None) == (output not in expected), (name, output)
                if got is not None:
                    np.testing.assert_allclose(got, expected[output].numpy(), rtol=1e-5, atol=1e-5)
    client.close()
    assert max(lengths) > LARGEST, "one list is too long"
