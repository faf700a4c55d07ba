"""Sets of files in the store are complete and signed; others are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builder.errors import EnvironmentProblem
from builder.store import Folders

KEY = "0" * 64


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in {
        "net/config.pbtxt": "a",
        "net/1/model.plan": "b",
        "net.step/x": "c",
    }.items():
        file = tmp_path / "repository" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "repository"


@pytest.fixture
def store(tmp_path: Path, repository: Path) -> Folders:
    """A store with the model `net` and its step."""
    folders = Folders(str(tmp_path / "store"))
    assert folders.find("published", KEY) is None
    paths = {name: repository / name for name in files(repository)}
    folders.keep("published", KEY, paths, {"layers": 3})
    return folders


def files(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_stored_model_is_restored_unchanged(
    store: Folders, repository: Path, tmp_path: Path
) -> None:
    entry = store.find("published", KEY, whole=True)
    assert entry is not None and entry.facts == {"layers": 3}
    store.restore(entry, tmp_path / "again")
    assert files(tmp_path / "again") == files(repository)


def test_damaged_file_is_refused_and_removed(store: Folders, tmp_path: Path) -> None:
    entry = store.find("published", KEY, whole=True)
    assert entry is not None
    plan = entry.files["net/1/model.plan"]
    file = tmp_path / "store" / "files" / plan[:2] / plan
    file.write_text("x")
    with pytest.raises(EnvironmentProblem, match="is damaged"):
        store.restore(entry, tmp_path / "again")
    assert (
        store.find("published", KEY, whole=True) is None
    )  # the damaged file was removed, so the model is built again


@pytest.mark.parametrize(
    "change",
    ["facts", "key", "kind", "outside ..", "outside /net", "outside ", "outside a/.."],
)
def test_changed_record_is_ignored(store: Folders, tmp_path: Path, change: str) -> None:
    file = tmp_path / "store" / "published" / KEY[:2] / f"{KEY}.json"
    record = json.loads(file.read_text())
    kind, _, name = change.partition(" ")
    if kind == "outside":  # signed, with a file outside the folder
        record.pop("signature")
        record["files"][name] = record["files"]["net/config.pbtxt"]
        store.store.write_record(str(file), record)
    else:
        file.write_text(json.dumps({**record, change: {"layers": 4}}))
    assert store.find("published", KEY, whole=True) is None


@pytest.mark.parametrize("name", ["", "..", "/etc/passwd", "a/../../b"])
def test_file_set_with_a_file_outside_is_ignored(
    store: Folders, repository: Path, name: str
) -> None:
    file = repository / "net" / "config.pbtxt"
    store.keep("set", KEY, {"config": file}, {})
    assert store.find("set", KEY) is not None
    store.keep("set", KEY, {"config": file, name: file}, {})
    assert store.find("set", KEY) is None


def test_unwritable_store_raises_environment_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="could not be written"):
        Folders(str(tmp_path / "file" / "store")).add(tmp_path / "file")
