"""`repo` keeps and reports a config edited by hand, and replaces it only on request."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.conftest import Small, save, save_small

Run = Callable[..., Result]


def test_rebuild_keeps_or_overwrites_edits_only_on_request(
    small: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    config = out / "small" / "config.pbtxt"
    assert run("repo", small, "--out", out).exit_code == 0
    config.write_text(config.read_text().replace("count: 1", "count: 2"))
    unchanged = run("repo", small, "--out", out)
    assert unchanged.exit_code == 0 and "small  edited" in unchanged.stdout
    assert "was edited by hand: instance_group.0.count 1 -> 2" in unchanged.stderr
    refused = run("repo", small, "--out", out, "--precision", "fp16")
    assert (
        refused.exit_code == 2
        and "would overwrite changes made by hand" in refused.stderr
    )
    assert "count: 2" in config.read_text()
    result = run("repo", small, "--out", out, "--precision", "fp16", "--keep-edits")
    assert result.exit_code == 0, result.stderr
    assert "count: 2" in config.read_text() and "fp16" in config.read_text()
    dropped = run(
        "repo", small, "--out", out, "--precision", "fp16", "--overwrite-edits"
    )
    assert dropped.exit_code == 0 and "count: 1" in config.read_text()
    assert "rebuilt because: --overwrite-edits" in dropped.stderr


def test_adopt_moves_edits_to_the_manifest_and_keeps_its_comments(
    small: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    config, manifest = out / "small" / "config.pbtxt", small / "small.yaml"
    manifest.write_text(f"# a comment\n{manifest.read_text()}instances: 1  # one\n")
    assert run("repo", small, "--out", out).exit_code == 0
    text = config.read_text().replace("count: 1", "count: 2")
    config.write_text(
        text.replace(
            "dynamic_batching {",
            "dynamic_batching {\n  max_queue_delay_microseconds: 50",
        )
        + 'metric_tags { key: "team" value: "search" }\n'
        + 'parameters { key: "owner" value { string_value: "ops" } }\n'
    )
    adopted = run("adopt", out, "small", "--models", small)
    assert adopted.exit_code == 0 and "triton.dynamic_batching" not in adopted.stdout, (
        adopted.output
    )
    written = manifest.read_text()
    assert "# a comment" in written and "instances: 1  # one" in written
    assert 'metric_tags: {"team": "search"}' in written and '"count": 2' in written
    assert "max_queue_delay_us: 50" in written
    # generated parameters are not copied to the manifest
    assert 'parameters: {"owner": {"string_value": "ops"}}' in written
    again = run("repo", small, "--out", out)
    assert again.exit_code == 0 and "small  reused" in again.stdout, again.output
    assert all(
        words in config.read_text() for words in ("count: 2", "search", "seconds: 50")
    )
    assert "small  unchanged" in run("repo", small, "--out", out).stdout
    # a second edit keeps the first
    config.write_text(
        config.read_text() + 'parameters { key: "b" value { string_value: "c" } }\n'
    )
    assert run("adopt", out, "small", "--models", small).exit_code == 0
    assert '"owner": {"string_value": "ops"}' in manifest.read_text()
    assert run("repo", small, "--out", out).exit_code == 0


def test_added_file_makes_the_model_edited(
    published: Path, run: Run, tmp_path: Path
) -> None:
    models = save_small(tmp_path)
    assert "small  unchanged" in run("repo", models, "--out", published).stdout
    (published / "small" / "1" / "notes.txt").write_text("")
    completed = run("repo", models, "--out", published)
    assert (
        "small  edited" in completed.stdout
        and "small/1/notes.txt was not written by" in completed.stderr
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_batch_size: 8", "max_batch_size: 4", "max_batch_size was edited by hand"),
        ('name: "y"', 'name: "z"', "output was edited by hand"),
        ('name: "small"', "name: ", "not a Triton model config"),
    ],
)
def test_edit_without_a_manifest_key_is_refused(
    published: Path, tmp_path: Path, run: Run, old: str, new: str, words: str
) -> None:
    models = save_small(tmp_path)
    before = (models / "small.yaml").read_text()
    config = published / "small" / "config.pbtxt"
    config.write_text(config.read_text().replace(old, new))
    refused = run("adopt", published, "small", "--models", models)
    assert refused.exit_code == 2 and words in refused.stderr
    assert (models / "small.yaml").read_text() == before


def test_adopt_accepts_no_edits_and_refuses_wrong_paths(
    published: Path, small: Path, run: Run
) -> None:
    nothing = run("adopt", published, "small", "--models", small)
    assert nothing.exit_code == 0 and "its config has no edits" in nothing.stdout
    for arguments in (
        (published, "other", "--models", small),
        (published / "x", "small", "--models", small),
        (published, "small", "--models", small / "x"),
    ):
        refused = run("adopt", *arguments)
        assert (
            refused.exit_code == 2
            and refused.stderr
            and "Traceback" not in refused.stderr
        )
        assert max(map(len, run("adopt", "--help").stdout.splitlines())) <= 80


@pytest.mark.slow
def test_removed_output_is_refused_unless_accepted(
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


@pytest.mark.parametrize("stem", ["net/model", "net/1/net"])
def test_source_folder_of_a_model_is_not_replaced(
    stem: str, small: Path, tmp_path: Path, run: Run
) -> None:
    source = tmp_path / f"{stem}.pt"
    source.parent.mkdir(parents=True)
    for suffix in (".pt", ".yaml"):
        shutil.copy(small / f"small{suffix}", source.with_suffix(suffix))
    refused = run("repo", source, "--out", tmp_path, "--overwrite-edits")
    assert refused.exit_code == 2 and "which has the model file" in refused.stderr
    assert source.is_file() and source.with_suffix(".yaml").is_file()


@pytest.mark.parametrize("command", ["adopt", "check"])
def test_only_commands_with_the_option_suggest_input(
    published: Path, run: Run, command: str
) -> None:
    bare = published.parent / "bare"
    bare.mkdir()
    save(Small(), bare / "small.pt", manifest=None)
    arguments = [published, "small", "--models", bare] if command == "adopt" else [bare]
    result = run(command, *arguments)
    assert (result.exit_code, "trt-build init" in result.output) == (2, True)
    assert ("pass --input" in result.output) == (command == "check")
