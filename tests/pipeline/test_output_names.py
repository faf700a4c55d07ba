"""Keys of dictionaries that no endpoint has as names are served with others, and named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner
from torch import Tensor, nn

import builder
from builder.cli import main
from builder.manifest import TensorSpec
from tests.pipeline import models
from tests.pipeline.test_known_cases import checked, outputs_of


class Keys(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {
            "my key": x,
            "my_key": x + 1,
            "größe": x + 2,
            "": x + 3,
            "output": x + 4,
            "_": x + 5,
            "x": x + 6,
            "1": x + 7,
            "true": x + 8,
            "-2": x + 9,
            ".x": x + 10,
            "a:b": x + 11,
        }


class SamePaths(nn.Module):
    def forward(self, x: Tensor) -> dict[str, dict[str, Tensor]]:
        return {"a.b": {"c": x}, "a": {"b.c": x + 1}}


NAMES = {
    Keys: "my_key2 my_key gr__e output output2 output3 x_out 1 true -2 _x a_b".split(),
    SamePaths: ["a.b.c", "a.b.c2"],
}


@pytest.mark.parametrize("module", NAMES)
def test_outputs_with_any_keys_are_served(
    tmp_path: Path, module: type[nn.Module]
) -> None:
    source = models.save(tmp_path / "models", module())
    model = checked(source / "m.pt", tmp_path / "out")
    assert [one.name for one in model.artifact.outputs] == NAMES[module]
    x = torch.randn(2, 4)
    for number, output in enumerate(outputs_of(model.artifact, [x])):
        torch.testing.assert_close(output, x + number)
    renamed = [text for text in model.warnings if "served as" in text]
    assert len(renamed) == {Keys: 7, SamePaths: 1}[module]


@pytest.mark.parametrize("module", NAMES)
def test_init_writes_names_that_check_accepts(
    tmp_path: Path, module: type[nn.Module]
) -> None:
    source = models.save(tmp_path / "models", module())
    manifest = source / "m.yaml"
    text = manifest.read_text()
    manifest.unlink()
    runner = CliRunner()
    assert runner.invoke(main, ["init", str(source / "m.pt")]).exit_code == 0
    written = next(
        line
        for line in manifest.read_text().splitlines()
        if line.startswith("outputs: ")
    )
    assert yaml.safe_load(written)["outputs"] == NAMES[module]
    manifest.write_text(text + written + "\n")
    result = runner.invoke(main, ["check", str(source), "--no-build"])
    assert result.exit_code == 0, result.output
    shown = runner.invoke(main, ["inspect", str(source / "m.pt")])
    assert shown.exit_code == 0, shown.output


def test_compiled_module_returns_the_keys() -> None:
    compiled = builder.compile(Keys(), [TensorSpec("float32", (2, 4), name="x")])
    x = torch.randn(2, 4)
    for number, (key, tensor) in enumerate(compiled(x).items()):
        assert key == list(Keys()(x))[number]
        torch.testing.assert_close(tensor, x + number)
    same = builder.compile(SamePaths(), [TensorSpec("float32", (2, 4), name="x")])
    torch.testing.assert_close(same(x)["a"]["b.c"], x + 1)


def test_inspect_names_outputs_without_a_manifest_key(tmp_path: Path) -> None:
    source = models.save(tmp_path / "models", SamePaths())
    result = CliRunner().invoke(main, ["inspect", str(source / "m.pt"), "--json"])
    assert result.exit_code == 0, result.output
    assert "a.b.c2" in result.output
