"""Models on a real server with outputs that may be None: the response omits these."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from tritonclient import http

from tests.pipeline.optional_outputs import MODULES
from tests.pipeline.test_optional_outputs import save
from tests.repository.optional_served import (
    CLIENTS,
    Served,
    assert_verified,
    requests_of,
    serve_models,
)

pytestmark = [pytest.mark.live, pytest.mark.slow]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("optional")
    for module in MODULES:
        save(folder / "models", module)
    yield from serve_models(folder)


def test_verify_compares_the_present_outputs(served: Served) -> None:
    assert_verified(served, len(MODULES))


@pytest.mark.parametrize("protocol", CLIENTS)
@pytest.mark.parametrize(
    "by_name", [False, True], ids=["all outputs", "outputs by name"]
)
def test_as_numpy_returns_none_for_missing_outputs(
    served: Served, protocol: str, by_name: bool
) -> None:
    for request in requests_of(served, protocol, MODULES):
        request.assert_answered(by_name=by_name)


def test_concurrent_requests_take_independent_branches(
    served: Served,
) -> None:
    _, _, server = served
    client = http.InferenceServerClient(server.http_url, concurrency=8)
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
