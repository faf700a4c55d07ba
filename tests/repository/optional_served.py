"""Common parts of the live tests of missing outputs: the server and the comparison."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tritonclient import grpc, http

from builder.parity import verify
from builder.repository import build_repository
from builder.serving import Server, serve
from tests.serving.ports import FREE

CLIENTS = {"http": http, "grpc": grpc}
Served = tuple[Path, Path, Server]
"""The folder of the models, the repository, and its server."""


def serve_models(folder: Path) -> Iterator[Served]:
    """Build the models in `folder`/models, and serve them until the generator is closed."""
    results = build_repository(folder / "models", folder / "out")
    assert {one.name: str(one.error) for one in results if not one.ok} == {}
    with serve(folder / "out", **FREE) as server:
        yield folder / "models", folder / "out", server


def assert_verified(served: Served, count: int) -> None:
    """Raise AssertionError unless all `count` models pass `verify`."""
    _, repository, server = served
    results = verify(repository, server.http_url, server.grpc_url, repeat=0)
    assert {one.name: one.problems for one in results if not one.passed} == {}
    assert len(results) == count


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
