"""A model with in-place writes that cannot be functionalized: torch serves the whole model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor, nn

from builder.parity import verify
from builder.repository import build_repository
from builder.serving import FREE_PORTS, serve


class Convolutions(nn.Module):
    """Convolutions that TensorRT can run."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = (
            nn.Conv1d(3, 4, 3, padding=1),
            nn.Conv1d(4, 2, 3, padding=1),
        )


class Windows(Convolutions):
    """A write through overlapping windows between two convolutions."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x).clone()
        y.unfold(2, 2, 1).add_(1.0)
        x.unfold(2, 2, 2).mul_(2.0)
        return self.last(y), x * 1


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    torch.jit.script(Windows().eval()).save(str(folder / "windows.pt"))
    manifest = {
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 3, 8]}],
        "dims": {"batch": {"min": 1, "opt": 2, "max": 4}},
    }
    (folder / "windows.yaml").write_text(yaml.safe_dump(manifest))
    return folder


class Statistics(Convolutions):
    """Keeps a running mean and a count of calls, on which no output depends."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.calls = 0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.first(x)
        self.calls += 1
        self.mean.mul_(0.9).add_(y.mean((0, 2)), alpha=0.1)
        return self.last(y), x * 1


def test_writes_that_no_output_reads_are_left_out(models: Path, tmp_path: Path) -> None:
    torch.jit.script(Statistics().eval()).save(str(models / "windows.pt"))
    (result,) = build_repository(models, tmp_path / "out", isolate=False)
    assert result.ok and "torch" not in result.segments, result.error
    (warning,) = result.warnings
    assert warning.startswith("forward writes 'calls', 'mean', on which no output")
    assert "test_in_place_writes.py" in warning


def test_in_place_model_is_one_torch_segment(models: Path, tmp_path: Path) -> None:
    (result,) = build_repository(models, tmp_path / "out", isolate=False)
    assert result.ok and result.segments == ("torch",), result.error
    (warning,) = result.warnings
    assert warning.startswith("served by PyTorch only: aten::add_ writes in place")
    assert "test_in_place_writes.py" in warning and "fix:" in warning


def test_require_full_rejects_the_in_place_model(models: Path, tmp_path: Path) -> None:
    path = models / "windows.yaml"
    path.write_text(path.read_text() + "fallback: {require_full: true}\n")
    (result,) = build_repository(models, tmp_path / "out", isolate=False)
    assert not result.ok and "writes in place" in str(result.error)


OPERATOR = """
import torch

library = torch.library.Library("written", "DEF")
library.define("bump(Tensor(a!) x, float by) -> ()")
library.impl("bump", lambda x, by: [x.add_(by), None][1], "CompositeExplicitAutograd")
"""


@pytest.fixture
def with_operator(models: Path) -> Path:
    """Two copies of the model above, and `bumped`, whose custom operator writes to its input and
    returns nothing.
    """
    from builder.torchscript.plugins import load_libraries

    (models / "bump.py").write_text(OPERATOR)
    load_libraries([models / "bump.py"])

    class Bumped(Convolutions):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            y = self.first(x)
            before = y * 1
            torch.ops.written.bump(y, 2.0)
            torch.ops.written.bump(x, 1.0)
            return self.last(y) + self.last(before), x

    torch.jit.trace(Bumped().eval(), torch.randn(2, 3, 8)).save(
        str(models / "bumped.pt")
    )
    manifest = (models / "windows.yaml").read_text()
    (models / "bumped.yaml").write_text(manifest + "libraries: [bump.py]\n")
    for name in ("fused", "ensemble"):
        shutil.copy(models / "windows.pt", models / f"{name}.pt")
        (models / f"{name}.yaml").write_text(manifest)
    for suffix in ("pt", "yaml"):
        (models / f"windows.{suffix}").unlink()
    return models


@pytest.mark.live
@pytest.mark.slow
def test_served_outputs_match_the_module(with_operator: Path, tmp_path: Path) -> None:
    """One server has both layouts and the model with the custom operator."""
    layouts = {"bumped": "auto", "fused": "fused", "ensemble": "ensemble"}
    for name, layout in layouts.items():
        (result,) = build_repository(
            with_operator, tmp_path / "out", layout=layout, only=[name], isolate=False
        )
        assert result.ok, result.error
        assert name != "bumped" or result.segments == ("torch",)
    with serve(tmp_path / "out", **FREE_PORTS) as server:
        parities = verify(tmp_path / "out", server.http_url, server.grpc_url)
    failed = {p.name: [r.problems for r in p.results if not r.passed] for p in parities}
    assert all(parity.passed for parity in parities), failed
    assert layouts.keys() <= failed.keys()
