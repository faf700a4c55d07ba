"""`versions:` in a manifest, and the commands that show, roll back, prune and promote them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result

from tests.cli.conftest import MANIFEST, save

Run = Callable[..., Result]


class Scaled(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :3] * self.factor


def write(models: Path, factor: float, more: str = "versions: {keep: 3}\n") -> None:
    models.mkdir(exist_ok=True)
    save(Scaled(factor), models / "net.pt", MANIFEST + more)


def states(run: Run, out: Path) -> list[tuple[int, str]]:
    record = json.loads(run("history", out, "--json").stdout)["models"][0]
    return [(one["number"], one["state"]) for one in record["versions"]]


@pytest.mark.slow
def test_versions_are_added_shown_rolled_back_pruned_and_promoted(tmp_path: Path, run: Run) -> None:
    models, out, live = tmp_path / "models", tmp_path / "out", tmp_path / "live"
    for factor in (1.0, 2.0):
        write(models, factor)
        done = run("repo", models, "--out", out)
        assert done.exit_code == 0, done.output
    assert states(run, out) == [(2, "current"), (1, "kept")]
    record = json.loads(run("history", out, "--json").stdout)["models"][0]["versions"][0]
    assert record["parity"]["answers"] > 0 and record["parity"]["absolute"] == 0.0
    assert (
        len(record["source"]) == 64
        and record["versions"]["torch"]
        and "2/plan.json" in record["files"]
    )
    assert "unchanged" in run("repo", models, "--out", out).stdout
    assert run("promote", out, live).exit_code == 0 and states(run, live) == [(1, "current")]
    for inside in (out / "live", tmp_path):
        nested = run("promote", out, inside)
        assert nested.exit_code == 2 and "inside each other" in nested.stderr
    assert not (out / "live").exists()
    assert not (tmp_path / ".env").exists()
    assert "version 1 is served, and was 2" in run("rollback", out, "net").stdout
    again = run("repo", models, "--out", out)
    assert "unchanged" in again.stdout and "was rolled back" in again.stderr
    assert states(run, out) == [(2, "kept"), (1, "current")]
    assert "promoted" in run("promote", out, live, "--write-env").stdout
    assert "MODEL_REPOSITORY=./live" in (tmp_path / ".env").read_text()
    assert states(run, live) == [(2, "current"), (1, "kept")]
    write(models, 3.0)
    assert run("repo", models, "--out", out).exit_code == 0
    assert states(run, out) == [(3, "current"), (2, "kept"), (1, "kept")]
    assert run("prune", out, "--keep", 1).exit_code == 0
    assert states(run, out) == [(3, "current")]
    nothing = run("rollback", out, "net")
    assert nothing.exit_code == 2 and "has no earlier version" in nothing.stderr
    assert run("history", out, "--only", "nte").exit_code == 2


def test_mistakes_of_versions_have_their_lines(tmp_path: Path, run: Run) -> None:
    write(
        tmp_path / "models",
        1.0,
        "versions: {keep: 2, serve: 3}\ntriton:\n  version_policy: {all: {}}\n",
    )
    result = run("repo", tmp_path / "models", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "net.yaml:6: 3 versions cannot be served: 2 are kept" in result.stderr
    assert "net.yaml:8: `versions` writes the version policy" in result.stderr
