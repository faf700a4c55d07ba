"""`repo` and a config that somebody edited: kept, reported, and replaced only where it is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]


def test_an_edit_is_kept_refused_carried_over_and_dropped(
    small: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    config = out / "small" / "config.pbtxt"
    assert run("repo", small, "--out", out).exit_code == 0
    config.write_text(config.read_text().replace("count: 1", "count: 2"))
    unchanged = run("repo", small, "--out", out)
    assert unchanged.exit_code == 0 and "small  unchanged" in unchanged.stdout
    assert "was edited by hand: - count: 1; + count: 2" in unchanged.stderr
    refused = run("repo", small, "--out", out, "--precision", "fp16")
    assert refused.exit_code == 2 and "would lose what was changed by hand" in refused.stderr
    assert "count: 2" in config.read_text()
    kept = run("repo", small, "--out", out, "--precision", "fp16", "--keep-edits")
    assert kept.exit_code == 0, kept.stderr
    assert "count: 2" in config.read_text() and "fp16" in config.read_text()
    dropped = run("repo", small, "--out", out, "--precision", "fp16", "--overwrite-edits")
    assert dropped.exit_code == 0 and "count: 1" in config.read_text()
    assert "rebuilt because: --overwrite-edits" in dropped.stderr


@pytest.mark.slow
def test_a_model_whose_clients_could_not_go_on_is_refused(
    small: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    assert run("repo", small, "--out", out).exit_code == 0
    manifest = small / "small.yaml"
    manifest.write_text(manifest.read_text().replace("outputs: [y]", "outputs: [z]"))
    refused = run("repo", small, "--out", out)
    assert refused.exit_code == 2 and "output 'y' is no longer there" in refused.stderr
    assert 'name: "y"' in (out / "small" / "config.pbtxt").read_text()
    accepted = run("repo", small, "--out", out, "--accept-incompatible")
    assert accepted.exit_code == 0, accepted.stderr
    assert "warning: incompatible with its clients: output 'y'" in accepted.stderr
    assert 'name: "z"' in (out / "small" / "config.pbtxt").read_text()
