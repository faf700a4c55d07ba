"""Models that return a list of unknown length on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tritonclient.utils import InferenceServerException

from builder.parity.structure import leaves, length_of
from tests.pipeline.list_outputs import CONTAINERS, LARGEST, LISTS
from tests.pipeline.test_list_outputs import declared
from tests.pipeline.test_optional_outputs import inputs, save
from tests.repository.optional_served import (
    CLIENTS,
    Served,
    assert_present,
    assert_verified,
    output_names,
    serve_models,
)

pytestmark = [pytest.mark.live, pytest.mark.slow]

MODULES = (*LISTS, *CONTAINERS)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("lists")
    for module in MODULES:
        save(folder / "models", module, declared(module))
    yield from serve_models(folder)


def test_verify_compares_list_lengths_and_values(served: Served) -> None:
    assert_verified(served, len(MODULES))


@pytest.mark.parametrize("protocol", CLIENTS)
def test_response_contains_the_elements_of_the_list(
    served: Served, protocol: str
) -> None:
    models, _, server = served
    library: Any = CLIENTS[protocol]
    client = library.InferenceServerClient(getattr(server, f"{protocol}_url"))
    lengths = set()
    for module in MODULES:
        name = module.__name__.lower()
        original = torch.jit.load(str(models / f"{name}.pt")).eval()
        names = output_names(client, name)
        for x in inputs():
            given = library.InferInput("x", list(x.shape), "FP32").set_data_from_numpy(
                x.numpy()
            )
            with torch.no_grad():
                expected = dict(leaves(original(x.clone())))
            length = length_of(expected, LISTS.get(module, ""))
            lengths.add(length)
            if length > LARGEST:
                with pytest.raises(
                    InferenceServerException, match="increase max_lengths"
                ):
                    client.infer(name, [given])
                continue
            response = client.infer(name, [given])
            assert_present(response, names, expected, name)
    client.close()
    assert max(lengths) > LARGEST, "one list is too long"
