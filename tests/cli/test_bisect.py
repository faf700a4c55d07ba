"""The `bisect` command: its text, its JSON document, its files and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.test_ladder import PLUGIN

Run = Callable[..., Result]


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    path = tmp_path / "plugin.py"
    path.write_text(PLUGIN)
    return path


def test_bisect_names_the_node_and_writes_the_reduced_model(
    small: Path, plugin: Path, run: Run, tmp_path: Path
) -> None:
    """The sandboxed process of the model may write only to the folder of --reduce."""
    reduced = tmp_path / "reduced"
    result = run("bisect", small, "--plugin", plugin, "--reduce", reduced)
    assert result.exit_code == 3
    assert (
        "small: network differs from the original module on golden p0-" in result.stdout
    )
    assert " = aten::relu\n" in result.stdout
    assert f"converter relu ({plugin}:6)\n" in result.stdout
    assert (
        "dtypes    torch float32 -> float32; network float32 -> float32\n"
        in result.stdout
    )
    assert f"reduced   1 of 2 nodes: pytest {reduced / 'small'}\n" in result.stdout
    names = sorted(path.name for path in (reduced / "small").iterdir())
    assert names == ["inputs.npz", "reduced.pt", "reduced.yaml", "test_reduced.py"]


def test_correct_model_passes_and_names_no_node(
    published: Path, small: Path, run: Run
) -> None:
    result = run(
        "bisect", published, "--models", small, "--no-isolate", "--record", "--json"
    )
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    (model,) = document["models"]
    assert document["passed"] and model["passed"] and model["node"] is None
    report = json.loads(
        published.with_name("repository.results").joinpath("bisect.json").read_text()
    )
    assert model.items() <= report["models"][0].items()
    assert model["goldens"] == 5 and model["networks"] == 1


def test_unreadable_model_file_fails_with_exit_code_1(small: Path, run: Run) -> None:
    (small / "small.pt").write_bytes(b"no archive")
    result = run("bisect", small, "--json", "--no-isolate")
    (model,) = json.loads(result.stdout)["models"]
    assert result.exit_code == 1 and model["error"]["kind"] == "ModelFileError"


def test_invalid_option_combinations_are_usage_errors(
    published: Path, small: Path, run: Run
) -> None:
    result = run("bisect", published)
    assert result.exit_code == 2 and "--models MODELS" in result.output
    result = run("bisect", small, "--models", small)
    assert result.exit_code == 2 and "--models requires a repository" in result.output
    result = run("bisect", small, "--record")
    assert result.exit_code == 2 and "--record requires a repository" in result.output
