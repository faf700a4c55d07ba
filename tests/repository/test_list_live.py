"""Models that return a list of unknown length on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tritonclient.utils import InferenceServerException

from builder.parity.structure import length_of
from tests.pipeline.list_outputs import CONTAINERS, LARGEST, LISTS
from tests.pipeline.test_list_outputs import declared
from tests.pipeline.test_optional_outputs import save
from tests.repository.optional_served import (
    CLIENTS,
    Served,
    assert_verified,
    requests_of,
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
    lengths = set()
    for request in requests_of(served, protocol, MODULES):
        length = length_of(request.expected, LISTS.get(request.module, ""))
        lengths.add(length)
        if length > LARGEST:
            with pytest.raises(InferenceServerException, match="increase max_lengths"):
                request.send()
        else:
            request.assert_answered()
    assert max(lengths) > LARGEST, "one list is too long"
