"""One server with a batched model and one that keeps state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from builder import build_repository
from builder.bench.measure import Endpoint
from builder.serving import serve
from builder.triton import publish
from tests.repository import stateful as models
from tests.triton.artifacts import artifact, scorer, tensor


class Heavy(torch.nn.Module):
    """Takes some ten milliseconds, beside which a client's own work is small."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(512))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(100):
            x = torch.tanh(x @ self.weight)
        return x


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    (result,) = build_repository(
        models.write(folder, "recognizer"), folder / "repository", isolate=False
    )
    assert result.ok, result.error
    publish(scorer(), folder / "repository")
    inputs = (tensor("x", "float32", "batch", 512),)
    publish(artifact(Heavy(), inputs, ("y",), name="heavy"), folder / "repository")
    return folder / "repository"


@pytest.fixture(scope="session")
def endpoint(repository: Path) -> Iterator[Endpoint]:
    with serve(
        repository, http_port=0, grpc_port=0, metrics_port=0, client_shared_memory=True
    ) as server:
        yield Endpoint(server.http_url, server.grpc_url, server.metrics_url)
