"""`trt-build explain` names the changed part of the key, for models and published models."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from click.testing import Result

from tests.cli.conftest import MANIFEST
from tests.cli.test_startup import imported

Run = Callable[..., Result]


def test_explain_reports_first_build_unchanged_and_changed_model(
    small: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    assert (
        "small: would be built because: not published before"
        in run("explain", small, "--out", out).stdout
    )
    assert run("repo", small, "--out", out).exit_code == 0
    short = run("explain", small, "--out", out).stdout
    assert short == "small: unchanged\n  built last because: not published before\n"
    text = run("explain", small, "--out", out, "--all").stdout
    assert text.startswith(short)
    assert "in the store" in text
    for part in (
        "precision",
        "weights",
        "converters.aten::linear",
        "tensorrt",
        "source",
    ):
        assert f"\n    {part} " in text
    text = run("explain", small, "--out", out, "--precision", "fp16").stdout
    assert "small: would be built because: precision fp32 -> fp16" in text


def test_repository_instead_of_models_is_refused_with_its_models(
    small: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    run("repo", small, "--out", out, "--no-store")
    refused = run("explain", out)
    assert refused.exit_code == 2 and f"{out} is a repository" in refused.stderr
    assert (
        f"one of {out / 'small'}" in refused.stderr
        and "add TorchScript files" not in refused.stderr
    )
    assert "no models in" in run("explain", out / "small" / "goldens").stderr


def test_repo_reports_the_reason_of_a_rebuild(
    small: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    assert "rebuilt because" not in run("repo", small, "--out", out).stderr
    result = run("repo", small, "--out", out, "--precision", "fp16")
    assert "small: rebuilt because: precision fp32 -> fp16" in result.stderr
    assert "\nsmall  built " in result.stdout
    assert "\nsmall  reused " in run("repo", small, "--out", out).stdout
    unchanged = run("repo", small, "--out", out)
    assert "\nsmall  unchanged " in unchanged.stdout
    assert "rebuilt because" not in unchanged.stderr
    assert "because: precision fp16 -> fp32" in run("explain", out / "small").stdout


def test_without_a_repository_the_reason_is_read_from_the_store(
    small: Path, tmp_path: Path, run: Run
) -> None:
    store = tmp_path / "store"
    run("repo", small, "--out", tmp_path / "out", "--store", store)
    assert run("explain", small, "--store", store).stdout.startswith("small: unchanged")
    elsewhere = run(
        "repo", small, "--out", tmp_path / "other", "--store", store, "--precision=fp16"
    )
    assert "rebuilt because" not in elsewhere.stderr
    (small / "small.yaml").write_text(MANIFEST.replace("max: 8", "max: 9"))
    (report,) = json.loads(run("explain", small, "--store", store, "--json").stdout)[
        "models"
    ]
    assert report["because"] == (
        "precision fp16 -> fp32, profiles.0.batch [1, 2, 8] -> [1, 2, 9]"
    )
    assert report["plans"]["model"]["stored"] is True
    (report,) = json.loads(run("explain", small, "--no-store", "--json").stdout)[
        "models"
    ]
    assert report["because"] == "no earlier build"


def test_unusable_store_does_not_fail_explain(
    small: Path, tmp_path: Path, run: Run
) -> None:
    run("repo", small, "--out", tmp_path / "out", "--no-store")
    (tmp_path / "file").touch()
    record = run(
        "explain",
        small,
        "--out",
        tmp_path / "out",
        "--store",
        tmp_path / "file",
        "--all",
    )
    assert record.exit_code == 0, record.output
    assert "small: unchanged" in record.stdout and "no store responds" in record.stdout


def test_explain_imports_neither_torch_nor_tensorrt(small: Path) -> None:
    assert not {"torch", "tensorrt", "tensorrt_rtx", "numpy"} & imported(
        "explain", str(small), "--no-store"
    )
    assert "torch" in sys.modules
