"""The client code of the report is run unchanged against a live server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from builder import build_repository
from builder.report import gather
from builder.serving import FREE_PORTS, serve
from builder.triton import publish
from tests.repository import stateful
from tests.triton.artifacts import artifact, scorer, tensor

pytestmark = [pytest.mark.live, pytest.mark.slow]


class Mixed(torch.nn.Module):
    """Inputs of several element types, one of them without axes."""

    def forward(
        self, ids: torch.Tensor, keep: torch.Tensor, scale: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return ids * scale, keep


class Half(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("snippets")
    repository = folder / "repository"
    (result,) = build_repository(
        stateful.write(folder, "recognizer"), repository, isolate=False
    )
    assert result.ok, result.error
    publish(scorer(), repository)
    mixed = (
        tensor("ids", "int64", 3),
        tensor("keep", "bool", 100),
        tensor("scale", "float32"),
    )
    publish(artifact(Mixed(), mixed, ("scaled", "kept"), name="mixed"), repository)
    half = (tensor("x", "float16", "batch", 4),)
    publish(artifact(Half(), half, ("y",), name="half"), repository)
    return repository


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl")
def test_snippets_run_against_a_server(repository: Path) -> None:
    with serve(repository, **FREE_PORTS) as server:
        for model in gather(repository)["models"]:
            outputs = [one["name"] for one in model["outputs"]]
            code = model["snippets"]["python"].replace(
                "localhost:8000", server.http_url
            )
            ran = subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True
            )
            assert ran.returncode == 0, (model["name"], ran.stderr)
            assert all(f"{name} " in ran.stdout for name in outputs), ran.stdout
            text = model["snippets"]["curl"].replace("localhost:8000", server.http_url)
            completed = subprocess.run(
                ["bash", "-c", text], capture_output=True, text=True
            )
            reply = json.loads(completed.stdout)
            assert completed.returncode == 0 and "error" not in reply, (
                model["name"],
                reply,
            )
            assert [one["name"] for one in reply["outputs"]] == outputs
