"""Manual edits of a published model are reported, and lost only with `--overwrite-edits`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import PublishError, UsageError
from builder.store import Hashes, edits, published
from builder.triton import publish
from builder.triton.config import parse_config
from builder.triton.edits import carry_over
from tests.triton.artifacts import pair, scorer


@pytest.fixture
def hashes(tmp_path: Path) -> Hashes:
    return Hashes(tmp_path / "hashes.json")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return publish(scorer(serve_as="python"), tmp_path / "repository")


def edit(folder: Path, old: str, new: str) -> None:
    file = folder / "config.pbtxt"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_edited_config_is_reported_and_is_not_damage(
    folder: Path, hashes: Hashes
) -> None:
    record = {**published.read(folder / "trt-build.json"), "request": {}}
    published.write(folder, record)
    assert published.reason_to_rebuild(folder, {}, hashes) is None
    assert edits.notes(folder, hashes) == []
    edit(folder, "count: 1", "count: 2")
    assert published.reason_to_rebuild(folder, {}, hashes) is None
    (note,) = edits.notes(folder, hashes)
    assert (
        "scorer/config.pbtxt was edited by hand: instance_group.0.count 1 -> 2; it is kept"
        in note
    )
    (folder / "config.pbtxt").unlink()
    assert (
        published.reason_to_rebuild(folder, {}, hashes)
        == "config.pbtxt of the published model is damaged"
    )


def test_publication_that_would_lose_an_edit_is_refused(
    folder: Path, hashes: Hashes
) -> None:
    edits.refuse(folder, hashes, edits.REPORT)
    edit(folder, "count: 1", "count: 2")
    with pytest.raises(
        UsageError, match="would overwrite changes made by hand"
    ) as refused:
        edits.refuse(folder, hashes, edits.REPORT)
    assert "--keep-edits" in str(refused.value.fix)
    edits.refuse(folder, hashes, edits.KEEP)
    edits.refuse(folder, hashes, edits.OVERWRITE)


@pytest.mark.parametrize("content", ["net", "net/notes.txt", "net/1/model.plan"])
def test_content_of_others_is_not_replaced(
    tmp_path: Path, hashes: Hashes, content: str
) -> None:
    file, model = tmp_path / content, tmp_path / "net"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    with pytest.raises(UsageError, match="net, which trt-build did not write"):
        edits.refuse(model, hashes, edits.KEEP)
    edits.refuse(model, hashes, edits.OVERWRITE)
    if model.is_dir():
        (model / published.SIDECAR).touch()  # a damaged publication is replaced
        edits.refuse(model, hashes, edits.REPORT)
        (tmp_path / "link").symlink_to(model)
        with pytest.raises(UsageError, match="link, which trt-build did not write"):
            edits.refuse_any(tmp_path / "link", hashes)


def test_edit_of_a_step_cannot_be_kept(tmp_path: Path, hashes: Hashes) -> None:
    folder = publish(pair(1), tmp_path / "repository")
    step = json.loads((folder / "trt-build.json").read_text())["steps"][0]
    edit(folder.parent / step, "count: 1", "count: 2")
    assert [found.file.parent.name for found in edits.edits(folder, hashes)] == [step]
    with pytest.raises(UsageError, match=r"pair\.0\.torch"):
        edits.refuse(folder, hashes, edits.KEEP)


def test_foreign_versions_and_files_are_reported(folder: Path, hashes: Hashes) -> None:
    (folder / "2").mkdir()
    (folder / "2" / "model.py").write_text("")
    (folder / "1" / "3").mkdir()  # no version
    (folder / "1" / "notes.txt").write_text("")
    (folder / "1" / "__pycache__").unlink()
    (folder / "1" / "__pycache__").mkdir()
    (folder / "1" / "__pycache__" / "model.pyc").write_text("")
    (folder / ".trt-build.json.7.tmp").touch()  # of a process that was killed
    (folder / "link").symlink_to(folder.parent)
    assert edits.foreign(folder) == ["1/notes.txt", "2/", "link/"]
    notes = edits.notes(folder, hashes)
    assert any(
        "scorer/2/ was not written by trt-build, and Triton may serve it" in note
        for note in notes
    )
    for policy in (edits.REPORT, edits.KEEP):
        with pytest.raises(UsageError, match="scorer/2/ is a version") as refused:
            edits.refuse(folder, hashes, policy)
        assert "scorer/1/notes.txt is a file" in refused.value.message
        assert "adopt" not in str(refused.value.fix)
    edits.refuse(folder, hashes, edits.OVERWRITE)


def test_edit_is_carried_over_by_field(folder: Path, tmp_path: Path) -> None:
    edit(folder, "count: 1", "count: 2")
    edit(folder, "parameters", 'metric_tags { key: "t" value: "v" }\nparameters')
    new = publish(
        scorer(serve_as="python", precision="tf32"),
        tmp_path / "repository",
        finish=lambda new_folder: carry_over(folder, new_folder),
    )
    message = parse_config((new / "config.pbtxt").read_text(), "config.pbtxt")
    assert message.instance_group[0].count == 2 and dict(message.metric_tags) == {
        "t": "v"
    }
    assert message.parameters["trt_build.precision"].string_value == "tf32"
    assert len(edits.edits(new, Hashes())) == 1  # it still counts as an edit


def test_edit_of_a_field_that_changes_is_refused(folder: Path, tmp_path: Path) -> None:
    edit(folder, "count: 1", "count: 2")
    with pytest.raises(PublishError, match="instance_group was edited by hand"):
        publish(
            scorer(serve_as="python", instances=3),
            tmp_path / "repository",
            finish=lambda new_folder: carry_over(folder, new_folder),
        )
    message = parse_config((folder / "config.pbtxt").read_text(), "config.pbtxt")
    assert message.instance_group[0].count == 2
