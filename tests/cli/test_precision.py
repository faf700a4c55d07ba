"""Precision and builder options on the command line: the search, the checks before a build, and the
output of inspect.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.conftest import MANIFEST
from tests.repository.test_search import MANIFEST as SEARCH_MANIFEST
from tests.repository.test_search import Overflowing, by_reference, save

Run = Callable[..., Result]


def search(models: Path) -> tuple[object, ...]:
    """The command for models in a folder, into `out` beside it."""
    out = models.parent / "out"
    return ("repo", models, "--out", out, "--search-precision", "--no-isolate")


@by_reference
def test_precision_search_writes_the_manifest_and_builds(
    tmp_path: Path, run: Run
) -> None:
    models = save(tmp_path / "models", Overflowing())
    result = run(*search(models), "--no-store", "--json")
    data = json.loads(result.stdout)
    assert result.exit_code == 0 and data["ok"]
    (found,) = data["search"]
    assert (found["precision"], found["keep_fp32"], found["written"]) == (
        "fp16",
        ["layers.2/aten::linear_0"],
        True,
    )
    assert found["trials"] == len(found["tried"]) > 2 and found["error"] is None
    assert "net: trial 1: 0 layers kept in float32" in result.stderr
    assert (
        "fp16, in float32: layers.2/aten::linear_0" in result.stderr
        and "written into" in result.stderr
    )
    facts = json.loads((tmp_path / "out" / "net" / "trt-build.json").read_text())
    assert facts["precision"] == "fp16"


def test_model_with_failed_search_is_not_built(tmp_path: Path, run: Run) -> None:
    """The manifest's float32 would pass, but it was not requested. Other models are built."""
    models = save(tmp_path / "models", Overflowing(scale=1.0))
    words = (*search(models), "--precision", "int8")
    result = run(*words)
    assert (
        result.exit_code == 2
        and "requires calibration data" in result.stderr
        and "fix:" in result.stderr
    )
    assert "0 of 1 models" in result.stdout and not (tmp_path / "out").exists()
    (models / "other.pt").write_bytes((models / "net.pt").read_bytes())
    (models / "other.yaml").write_text(
        SEARCH_MANIFEST + "calibration: {data: [goldens]}\n"
    )
    result = run(*words)
    assert result.exit_code == 2 and "1 of 2 models" in result.stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["other"]


def test_search_without_a_manifest_is_a_usage_error(tmp_path: Path, run: Run) -> None:
    models = save(tmp_path / "models", Overflowing())
    (models / "net.yaml").unlink()
    result = run(*search(models), "--input", "x:float32:batch(1,2,4)x16")
    assert result.exit_code == 2 and "replace them" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hardware-compatible", "ampere_plus"], "has no hardware compatibility"),
        (["--target", "sm_89", "--target", "sm_90"], "cannot build for sm_90"),
        (["--pool", "nonsense=1M"], "memory_pools: this TensorRT has no 'nonsense'"),
    ],
)
def test_check_validates_builder_options(
    small: Path, run: Run, words: list[str], message: str
) -> None:
    result = run("check", small, "--flavor", "tensorrt-rtx", *words)
    assert result.exit_code == 2 and message in result.output
    assert (
        run(
            "check",
            small,
            "--flavor",
            "tensorrt-rtx",
            "--target",
            "sm_89",
            "--pool",
            "workspace=1M",
        ).exit_code
        == 0
    )


def test_check_reports_unsupported_options_of_the_manifest(
    small: Path, run: Run
) -> None:
    (small / "small.yaml").write_text(
        MANIFEST + "build: {hardware_compatible: ampere_plus}\n"
    )
    result = run("check", small, "--flavor", "tensorrt-rtx", "--json")
    (model,) = json.loads(result.stdout)["models"]
    assert (
        result.exit_code == 2 and "hardware compatibility" in model["error"]["message"]
    )


@pytest.mark.parametrize("command", ["check", "inspect"])
def test_check_and_inspect_import_the_plugin(
    small: Path, tmp_path: Path, run: Run, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "TRT_BUILD_CACHE", str(tmp_path)
    )  # a sandboxed check may write to it
    plugin = tmp_path / "plugin.py"
    plugin.write_text(f"open({str(tmp_path / 'seen')!r}, 'w')")
    assert run(command, small, "--plugin", plugin).exit_code == 0
    assert (tmp_path / "seen").exists()


def test_inspect_shows_layers_kept_in_float32(tmp_path: Path, run: Run) -> None:
    models = save(
        tmp_path / "models",
        Overflowing(),
        SEARCH_MANIFEST + 'precision: fp16\nkeep_fp32: ["layers.2/aten::linear_0"]\n',
    )
    data = json.loads(run("inspect", models, "--json").stdout)
    products = [layer for layer in data["layers"] if layer["type"] == "MATRIX_MULTIPLY"]
    assert [layer["outputs"][0]["dtype"] for layer in products] == [
        "HALF",
        "HALF",
        "FLOAT",
        "HALF",
        "HALF",
        "HALF",
    ]
