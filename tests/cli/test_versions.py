"""`versions:` in a manifest, and the commands that show, roll back, prune and promote them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import Result

from builder.manifest.spec import Versions
from builder.store import published, staging
from builder.triton import publish
from tests.cli.conftest import MANIFEST, save
from tests.triton.artifacts import scorer

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
def test_versions_are_added_rolled_back_pruned_and_promoted(
    tmp_path: Path, run: Run
) -> None:
    models, out, live = tmp_path / "models", tmp_path / "out", tmp_path / "live"
    for factor in (1.0, 2.0):
        write(models, factor)
        result = run("repo", models, "--out", out)
        assert result.exit_code == 0, result.output
    assert states(run, out) == [(2, "current"), (1, "kept")]
    record = json.loads(run("history", out, "--json").stdout)["models"][0]["versions"][
        0
    ]
    assert record["parity"]["answers"] > 0 and record["parity"]["absolute"] == 0.0
    assert (
        len(record["source"]) == 64
        and record["versions"]["torch"]
        and "2/plan.json" in record["files"]
    )
    assert "unchanged" in run("repo", models, "--out", out).stdout
    assert run("promote", out, live).exit_code == 0 and states(run, live) == [
        (1, "current")
    ]
    assert not (out / "live").exists()
    assert not (tmp_path / ".env").exists()
    assert (
        "version 1 is served instead of version 2" in run("rollback", out, "net").stdout
    )
    again = run("repo", models, "--out", out)
    assert "unchanged" in again.stdout and "was rolled back" in again.stderr
    config = out / "net" / "config.pbtxt"
    generated = config.read_text()
    config.write_text(generated + "# by hand\n")
    for words in ([], ["--overwrite-edits"]):
        edited = run("repo", models, "--out", out, *words)
        assert "edited" in edited.stdout and "by hand" in edited.stderr
        assert ("--rebuild only" in edited.stderr) == bool(words)
    config.write_text(generated)
    explained = run("explain", models, "--out", out).stdout
    assert "net: not built: version 2, which matches, was rolled back" in explained
    assert states(run, out) == [(2, "kept"), (1, "current")]
    promoted = run("promote", out, live, "--write-env")
    assert "promoted" in promoted.stdout and "/.env: its block" in promoted.stderr
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


def add(number: int, repository: Path) -> None:
    """Publish the model `scorer`, whose content depends on the number."""
    model = scorer(serve_as="python")
    spec = replace(model.spec, versions=Versions(keep=3))
    publish(
        replace(model, spec=spec, lowered=model.lowered + bytes([number])),
        repository,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository that serves version 3 of `scorer` and keeps 2 and 1."""
    for number in (1, 2, 3):
        add(number, tmp_path / "repository")
    return tmp_path / "repository"


def test_removed_model_is_reported_and_removed(
    repository: Path, small: Path, run: Run
) -> None:
    words = [small, "--out", repository]
    (small / "Scorer.pt").write_bytes(b"")
    (small / "Scorer.yaml").write_text(MANIFEST)
    refused = run("repo", *words, "--only", "Scorer")
    assert refused.exit_code == 2 and "only in case" in refused.stderr
    (small / "Scorer.pt").rename(small / "scorer.pt")
    assert "no model file" not in run("explain", *words, "--only", "small").stderr
    (small / "scorer.pt").unlink()
    (small / "Scorer.yaml").unlink()
    for command, keys in (("repo", {"models", "ok"}), ("explain", {"models"})):
        result = run(command, *words)
        hint = f"no model file in {small}: scorer; remove with `trt-build remove"
        assert f"{hint} {repository} scorer`" in result.stderr
        record = json.loads(run(command, *words, "--json").stdout)
        assert record["without_source"] == ["scorer"] and keys < set(record)
    unknown = run("remove", repository, "scorer", "nosuch")
    assert unknown.exit_code == 2 and "no model 'nosuch'" in unknown.stderr
    record = json.loads(run("remove", repository, "scorer", "--json").stdout)
    assert record["models"] == [{"name": "scorer", "removed": [3, 2, 1]}]
    assert [path.name for path in repository.iterdir()] == ["small"]
    assert "no model file" not in run("repo", *words).stderr


def test_published_model_that_cannot_be_read_hides_no_results(
    repository: Path, small: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def access(path: Path, mode: int) -> bool:
        return "scorer" not in Path(path).parts

    monkeypatch.setattr("builder.store.published.os.access", access)
    result = run("repo", small, "--out", repository, "--json")
    assert result.exit_code == 0
    assert "without a model file: [Errno 13] Permission denied" in result.stderr
    assert json.loads(result.stdout)["models"][0]["name"] == "small"


CHANGES = {
    "rollback": ["{out}", "scorer"],
    "prune": ["{out}", "--keep", "1"],
    "promote": ["{other}", "{out}"],
    "merge": ["{other}", "{other}", "--out", "{out}"],
}


@pytest.mark.parametrize("command", CHANGES)
def test_command_repairs_the_repository_after_a_killed_process(
    command: str, repository: Path, tmp_path: Path, run: Run
) -> None:
    """The model is in the staging folder of a process that was killed between two renames."""
    add(9, tmp_path / "other")
    left = tmp_path / ".repository.staging-killed"
    left.mkdir()
    (repository / "scorer").rename(left / f"{staging.OLD}scorer")
    if command == "merge":
        (left / f"{staging.OLD}scorer").rename(left / f"{staging.OLD}kept")
    words = [
        word.format(out=repository, other=tmp_path / "other")
        for word in CHANGES[command]
    ]
    with staging.staging(repository) as live:
        result = run(command, *words)
        assert result.exit_code == 0, result.output
        assert not left.exists() and live.exists()
    expected = {
        "rollback": [2, 3, 1],
        "prune": [3],
        "promote": [4, 3, 2],
        "merge": [3, 2, 1],
    }
    folder = repository / ("kept" if command == "merge" else "scorer")
    assert [version.number for version in published.versions(folder)] == expected[
        command
    ]


def test_rollback_to_the_served_version_changes_nothing(
    repository: Path, run: Run
) -> None:
    before = (repository / "scorer").stat().st_ino
    result = run("rollback", repository, "scorer", "--to", 3)
    assert (
        result.exit_code == 0
        and "version 3 is already served, unchanged" in result.stdout
    )
    record = json.loads(
        run("rollback", repository, "scorer", "--to", 3, "--json").stdout
    )
    assert (record["from"], record["to"], record["state"]) == (3, 3, "unchanged")
    assert (repository / "scorer").stat().st_ino == before
    assert run("rollback", repository, "scorer", "--to", 2, "--json").exit_code == 0
    again = run("rollback", repository, "scorer", "--to", 2)
    assert again.exit_code == 0 and "already served" in again.stdout
    missing = run("rollback", repository, "scorer", "--to", 7)
    assert missing.exit_code == 2 and "no other version 7" in missing.stderr
    (repository / "scorer" / "2" / "plan.json").unlink()
    damaged = run("rollback", repository, "scorer", "--to", 2)
    assert damaged.exit_code != 0 and "2/plan.json" in damaged.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["history", "{no}"],
        ["prune", "{no}", "--keep", "1"],
        ["remove", "{no}", "net"],
        ["rollback", "{no}", "net"],
        ["promote", "{no}", "{no}-other"],
        ["adopt", "{no}", "net", "--models", "{no}"],
        ["push", "{no}", "--url", "127.0.0.1:1"],
        ["push", "{no}", "--url", "127.0.0.1:1", "--to", "{no}"],
        ["verify", "{no}", "--url", "127.0.0.1:1"],
        ["health", "{no}", "--url", "127.0.0.1:1"],
    ],
    ids=lambda words: " ".join(words[:1] + words[4:5]),
)
def test_missing_repository_is_reported_with_its_path(
    words: list[str], tmp_path: Path, run: Run
) -> None:
    result = run(*(word.format(no=tmp_path / "nowhere") for word in words))
    assert (
        result.exit_code == 2
        and f"{tmp_path / 'nowhere'} does not exist" in result.stderr
    )
    assert not (tmp_path / "nowhere").exists()


def test_push_checks_its_files_before_the_server(
    repository: Path, tmp_path: Path, run: Run
) -> None:
    """No server listens at this address."""
    push = ["push", repository, "--url", "127.0.0.1:1"]
    unknown = run(*push, "--only", "scoror")
    assert unknown.exit_code == 2 and "no model 'scoror'" in unknown.stderr
    missing = run(*push, "--to", tmp_path / "nowhere")
    assert missing.exit_code == 2 and "nowhere does not exist" in missing.stderr
    (tmp_path / "file").touch()
    file = run("history", tmp_path / "file")
    assert file.exit_code == 2 and "file is not a folder" in file.stderr
    assert run(*push, "--only", "scorer").exit_code == 4


def test_invalid_versions_are_reported_with_their_lines(
    tmp_path: Path, run: Run
) -> None:
    write(
        tmp_path / "models",
        1.0,
        "versions: {keep: 2, serve: 3}\ntriton:\n  version_policy: {all: {}}\n",
    )
    result = run("repo", tmp_path / "models", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "net.yaml:6: 3 versions cannot be served: 2 are kept" in result.stderr
    assert "net.yaml:8: `versions` writes the version policy" in result.stderr
