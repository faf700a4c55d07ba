"""Goldens on real engines without a server, in every profile and in three precisions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from builder.cli import main
from builder.parity import verify_engines
from builder.repository import build_repository
from builder.store import SIDECAR
from builder.torchscript import sha256
from tests.parity.asserting import TWO_PROFILES, assert_passed

pytestmark = pytest.mark.gpu

MANIFEST = """\
inputs:
  - {name: x, dtype: float32, shape: [batch, 3, 16, 16]}
  - {name: ids, dtype: int64, shape: [batch]}
profiles:
  - {batch: {min: 1, opt: 1, max: 1}}
  - {batch: {min: 2, opt: 4, max: 8}}
outputs: [scores, best]
"""


class Scores(torch.nn.Module):
    """A module with int64 input and output, which TensorRT 8.6 stores as int32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution = torch.nn.Conv2d(3, 32, 3, padding=1)
        self.words, self.head = torch.nn.Embedding(20, 32), torch.nn.Linear(32, 5)

    def forward(
        self, x: torch.Tensor, ids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.convolution(x).relu().mean((2, 3)) + self.words(ids)
        return self.head(features), ids + 1


@pytest.fixture(scope="module", params=["fp32", "tf32", "fp16"])
def repository(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    models = tmp_path_factory.mktemp("engines") / "models"
    models.mkdir()
    torch.jit.script(Scores().eval()).save(str(models / "scores.pt"))
    (models / "scores.yaml").write_text(f"{MANIFEST}precision: {request.param}\n")
    (result,) = build_repository(models, models.parent / "repository", isolate=False)
    assert result.ok, result.error
    return models.parent / "repository"


def test_every_golden_passes_on_the_engine(repository: Path) -> None:
    (parity,) = verify_engines(repository)
    assert_passed(parity)
    assert {r.golden for r in parity.results} == TWO_PROFILES
    assert all(r.median_ms for r in parity.results)


def test_verify_engine_command_reports_the_result(repository: Path) -> None:
    result = CliRunner().invoke(
        main, ["verify", str(repository), "--engine", "--json"], catch_exceptions=False
    )
    data = json.loads(result.stdout)
    assert result.exit_code == 0 and data["passed"]
    assert {r["protocol"] for model in data["models"] for r in model["results"]} == {
        "engine"
    }


def test_invalid_plan_fails_only_its_model(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository, tmp_path / "repository")
    model = tmp_path / "repository" / "scores"
    plan = model / "1" / "model.plan"
    plan.write_bytes(b"not a plan")
    (parity,) = verify_engines(tmp_path / "repository")
    assert (
        not parity.passed and "is not the file that was published" in parity.problems[0]
    )

    sidecar = json.loads((model / SIDECAR).read_text())
    sidecar["files"]["1/model.plan"] = sha256(plan)
    (model / SIDECAR).write_text(json.dumps(sidecar))
    (parity,) = verify_engines(tmp_path / "repository")
    assert not parity.passed and "refused the plan" in parity.problems[0]
