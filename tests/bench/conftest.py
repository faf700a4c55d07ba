"""A server with a batched model and a model with state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from builder import build_repository
from builder.bench.measure import Endpoint
from builder.serving import FREE_PORTS, serve
from builder.triton import publish
from tests.repository import stateful as models
from tests.triton.artifacts import artifact, scorer, tensor


class Identity(torch.nn.Module):
    """Returns its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0


PAUSED = """\
import time

import triton_python_backend_utils as utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.05)
        read = [utils.get_input_tensor_by_name(one, "x").as_numpy() for one in requests]
        return [utils.InferenceResponse([utils.Tensor("y", array)]) for array in read]
"""
"""A batch takes 50 milliseconds on every host, also on a busy one."""


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    (result,) = build_repository(
        models.write(folder, "recognizer"), folder / "repository", isolate=False
    )
    assert result.ok, result.error
    publish(scorer(), folder / "repository")
    inputs = (tensor("x", "float32", "batch", 512),)
    paused = publish(
        artifact(Identity(), inputs, ("y",), name="paused"), folder / "repository"
    )
    (paused / "1" / "model.py").write_text(PAUSED)
    return folder / "repository"


@pytest.fixture(scope="session")
def endpoint(repository: Path) -> Iterator[Endpoint]:
    with serve(repository, **FREE_PORTS, client_shared_memory=True) as server:
        yield Endpoint(server.http_url, server.grpc_url, server.metrics_url)
