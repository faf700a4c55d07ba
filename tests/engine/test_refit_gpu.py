"""A refitted plan has the results of torch and of a plan built from the new weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from builder.engine import BuildOptions, refit
from builder.parity import verify_engines
from builder.repository import build_repository
from builder.store.published import read

pytestmark = pytest.mark.gpu

MANIFEST = """\
inputs:
  - {{name: x, dtype: float32, shape: [batch, 3, 16, 16]}}
dims: {{batch: {{min: 1, opt: 4, max: 8}}}}
precision: {precision}
build: {{refit: true, optimization_level: 0}}
"""


class Layers(torch.nn.Module):
    """Convolutions with normalization, attention, and a recurrent layer: their weights are folded
    and split by passes.
    """

    def __init__(self, seed: int, column: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.features = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 3, padding=1),
            torch.nn.BatchNorm2d(32),
            torch.nn.ReLU(),
            torch.nn.ConvTranspose2d(32, 16, 2, stride=2),
        )
        self.features[1].running_mean.normal_()
        self.features[1].running_var.uniform_(0.5, 2)
        self.attention = torch.nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm, self.head = torch.nn.LayerNorm(32), torch.nn.Linear(32, 5)
        self.register_buffer("column", torch.tensor([column]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.features(x).mean(1)
        mixed, _ = self.attention(rows, rows, rows, need_weights=False)
        return self.head(self.norm(mixed)).index_select(1, self.column)


def publish(folder: Path, precision: str, **settings: int) -> str:
    """Publish the model, check parity, and return why its plan was built."""
    models, repository = folder / "models", folder / "repository"
    models.mkdir(exist_ok=True)
    module = torch.jit.script(Layers(**settings).eval())
    module.save(str(models / "layers.pt"))
    (models / "layers.yaml").write_text(MANIFEST.format(precision=precision))
    (result,) = build_repository(
        models, repository, isolate=False, jobs=1, store=str(folder / "store")
    )
    assert result.ok, result.error
    assert not result.warnings
    assert all(parity.passed for parity in verify_engines(repository))
    return reason(repository)


def reason(repository: Path) -> str:
    """Why the published plan was built."""
    (plan,) = read(repository / "layers" / "trt-build.json")["plans"].values()
    return str(plan["because"])


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_new_weights_are_refitted_into_the_stored_plan(
    tmp_path: Path, precision: str
) -> None:
    assert refit.possible(BuildOptions(refit=True))
    publish(tmp_path, precision, seed=0)
    assert publish(tmp_path, precision, seed=1) == "weights replaced by refit"


def test_changed_index_is_refitted_or_the_plan_rebuilt(tmp_path: Path) -> None:
    """TensorRT 8.6 replaces the indices of this network. Other versions may refuse."""
    publish(tmp_path, "fp32", seed=0)
    models, repository = tmp_path / "models", tmp_path / "repository"
    torch.jit.script(Layers(0, column=3).eval()).save(str(models / "layers.pt"))
    (result,) = build_repository(
        models, repository, isolate=False, jobs=1, store=str(tmp_path / "store")
    )
    assert result.ok, result.error
    is_refitted = reason(repository) == "weights replaced by refit"
    assert is_refitted != ("cannot replace" in "".join(result.warnings))
    assert all(parity.passed for parity in verify_engines(repository))
