"""A folder of TorchScript files and exported programs is built and served, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.export import Dim

from builder.cli import init
from builder.errors import UsageError
from builder.parity import verify
from builder.repository import build_repository
from builder.serving import FREE_PORTS, serve
from tests.repository import networks

ROWS = Dim("rows", min=1, max=8)
INPUTS = "inputs:\n  - {name: x, dtype: float32, shape: [batch, 8]}\n"
DIMS = "dims: {batch: {min: 1, opt: 2, max: 4}}\n"


class Renamed(nn.Module):
    """A module whose output has the name of its input."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"x": x.relu() * 2}


class Pairs(nn.Module):
    """A module with two rows of `pairs` for each row of `x`."""

    def forward(self, x: Tensor, pairs: Tensor) -> Tensor:
        return x.sum(1, keepdim=True).repeat_interleave(2, 0) + pairs


def save(
    folder: Path, name: str, module: nn.Module, *inputs: Tensor, shapes: object
) -> Path:
    program = torch.export.export(module.eval(), inputs, dynamic_shapes=shapes)  # type: ignore[arg-type]
    path = folder / f"{name}.pt2"
    torch.export.save(program, path)
    return path


def write_manifest(path: Path) -> str:
    """Write the manifest that `init` suggests for this file."""
    (guess,) = init._guessed([(path, None, (), ())], isolate=False)
    assert not isinstance(guess, Exception), guess
    text = init.text_of(path.stem, guess, None, [])
    path.with_suffix(".yaml").write_text(text)
    return text


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A TorchScript file and three programs: with a custom operator, with one name for input and
    output, and with an axis computed from another.
    """
    folder = tmp_path / "models"
    networks.write(folder, ["watermarked"])
    for kind in (".pt", ".yaml"):
        (folder / f"watermarked{kind}").rename(folder / f"script{kind}")
    torch.manual_seed(0)
    file = save(
        folder, "custom", networks.Watermarked(), torch.randn(2, 8), shapes=({0: ROWS},)
    )
    file.with_suffix(".yaml").write_text(f"{INPUTS}{DIMS}libraries: [stamp.py]\n")
    save(folder, "renamed", Renamed(), torch.randn(2, 4), shapes=({0: ROWS},))
    rows = Dim("rows", min=2, max=8)
    both = torch.randn(2, 4), torch.randn(4, 1)
    save(folder, "pairs", Pairs(), *both, shapes=({0: rows}, {0: 2 * rows}))
    return folder


def test_init_writes_distinct_names_and_consistent_sizes(models: Path) -> None:
    """Input and output names differ, and min, opt and max sizes satisfy the program's relation."""
    assert "outputs: [x_out]" in write_manifest(models / "renamed.pt2")
    text = write_manifest(models / "pairs.pt2")
    assert yaml.safe_load(text)["dims"] == {
        "batch": {"min": 2, "opt": 8, "max": 8},
        "batch_2": {"min": 4, "opt": 16, "max": 16},
    }


@pytest.mark.slow
@pytest.mark.live
def test_exported_programs_are_served(models: Path, tmp_path: Path) -> None:
    """The served outputs match the programs. Torch segments run the custom operator."""
    for name in ("renamed", "pairs"):
        write_manifest(models / f"{name}.pt2")
    results = {one.name: one for one in build_repository(models, tmp_path / "out")}
    assert all(one.ok for one in results.values()), [
        one.error for one in results.values()
    ]
    assert results["custom"].segments == results["script"].segments
    (warning,) = results["pairs"].warnings
    assert "batch_2 = 2*batch in every request" in warning
    with serve(tmp_path / "out", **FREE_PORTS) as server:
        parities = verify(tmp_path / "out", server.http_url, server.grpc_url)
    failed = {one.name: one.problems for one in parities if not one.passed}
    assert not failed
    assert {one.name for one in parities} >= {"custom", "pairs", "renamed", "script"}


def test_sizes_that_violate_the_relation_are_rejected(
    models: Path, tmp_path: Path
) -> None:
    """The error names the relation and valid sizes."""
    text = write_manifest(models / "pairs.pt2")
    manifest = models / "pairs.yaml"
    manifest.write_text(text.replace("min: 4, opt: 16", "min: 4, opt: 7"))
    (result,) = build_repository(models / "pairs.pt2", tmp_path / "out")
    assert result.error is not None and not result.ok
    assert "the program needs batch_2 = 2*batch" in str(result.error)
    assert "write batch 8, batch_2 16 as opt" in str(result.error.fix)


def test_two_files_with_the_same_name_are_rejected(
    models: Path, tmp_path: Path
) -> None:
    """The error is raised before the build."""
    torch.jit.script(Renamed()).save(models / "custom.pt")
    with pytest.raises(UsageError, match="another model has the name 'custom'"):
        build_repository(models, tmp_path / "out")
    assert not (tmp_path / "out").exists()
