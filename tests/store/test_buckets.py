"""Publication at a URL: the order of the writes, refusals and roll back."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

from builder.errors import EnvironmentProblem, PublishError, UsageError
from builder.store import Store, buckets, published

FILES = ("1/model.plan", "config.pbtxt", "goldens/0.npz")


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}/repository"


def write(folder: Path, version: int, **content: Any) -> None:
    """Writes a version of a model, as publication does."""
    (folder / str(version)).mkdir(parents=True)
    (folder / "goldens").mkdir(exist_ok=True)
    (folder / str(version) / "model.plan").write_text(f"plan {version}")
    (folder / "config.pbtxt").write_text(f"serves {version}")
    (folder / "goldens" / "0.npz").write_text(f"golden {version}")
    published.write(folder, {"version": version, **content})


def contents(url: str) -> dict[str, bytes]:
    with buckets.opened(url) as mirror:
        return {
            path.relative_to(mirror.path).as_posix(): path.read_bytes()
            for path in mirror.path.rglob("*")
            if path.is_file()
        }


@pytest.fixture
def first(url: str) -> dict[str, bytes]:
    """The files at the URL: the model `net`, version 1."""
    with buckets.opened(url, writes=True) as mirror:
        write(mirror.path / "net", 1)
        mirror.publish()
    return contents(url)


def record_targets(
    mirror: Any, operation: str, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The files of later calls of a file system operation, whose last argument is the target."""
    targets: list[str] = []
    function = getattr(mirror.fs, operation)

    def record(*arguments: str) -> None:
        targets.append(arguments[-1].partition("/repository/")[2])
        function(*arguments)

    monkeypatch.setattr(mirror.fs, operation, record)
    return targets


def test_publication_writes_steps_first_and_configs_last(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with buckets.opened(url, writes=True) as mirror:
        write(mirror.path / "a", 1)
        write(mirror.path / "z.1f", 1, step_of="a")
        order = record_targets(mirror, "put_file", monkeypatch)
        mirror.publish()
        mirror.publish()  # nothing is left to write
    files = ("1/model.plan", "goldens/0.npz", "trt-build.json", "config.pbtxt")
    assert order == [f"{model}/{file}" for model in ("z.1f", "a") for file in files]


def test_publication_removes_old_version_and_writes_farm_folder(
    url: str, first: dict[str, bytes]
) -> None:
    with buckets.opened(url, writes=True) as mirror:
        write(mirror.path / "net", 2)
        (mirror.path / "net" / "1" / "model.plan").unlink()
        (mirror.path.parent / "repository.farm").mkdir()
        (mirror.path.parent / "repository.farm" / "events.jsonl").write_text("{}")
        (mirror.path.parent / ".repository.lock").write_text("")
        mirror.publish()
        root = mirror.folder.parent
        assert mirror.fs.cat_file(f"{root}/repository.farm/events.jsonl") == b"{}"
        assert not mirror.fs.exists(f"{root}/.repository.lock")
    final = contents(url)
    assert sorted(final) == sorted(name.replace("/1/", "/2/") for name in first)
    assert final["net/config.pbtxt"] == b"serves 2"


def test_removal_deletes_config_of_ensemble_first(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that polls never reads an ensemble without its steps."""
    with buckets.opened(url, writes=True) as mirror:
        write(mirror.path / "z", 1)
        write(mirror.path / "a.1f", 1, step_of="z")
        mirror.publish()
    with buckets.opened(url, writes=True) as mirror:
        order = record_targets(mirror, "rm_file", monkeypatch)
        for model in ("z", "a.1f"):
            shutil.rmtree(mirror.path / model)
        mirror.publish()
    assert order[:2] == ["z/config.pbtxt", "a.1f/config.pbtxt"] and len(order) == 8


@pytest.mark.parametrize("failing", ["2/model.plan", "trt-build.json", "config.pbtxt"])
def test_failed_publication_is_rolled_back(
    url: str, first: dict[str, bytes], failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with buckets.opened(url, writes=True) as mirror:
        write(mirror.path / "net", 2)
        put = mirror.fs.put_file

        def fail_once(source: str, target: str) -> None:
            put(source, target)
            if target.endswith(failing) and "/copy/" in source:
                raise OSError("no route to host")

        monkeypatch.setattr(mirror.fs, "put_file", fail_once)
        with pytest.raises(
            EnvironmentProblem, match="could not be written: no route to host"
        ):
            mirror.publish()
    assert contents(url) == first


def test_existing_version_is_not_overwritten(url: str, first: dict[str, bytes]) -> None:
    with buckets.opened(url, writes=True) as mirror:
        (mirror.path / "net" / "1" / "model.plan").unlink()
        (mirror.path / "net" / "1" / "model.plan").write_text("another plan")
        with pytest.raises(UsageError, match="cannot replace a version") as raised:
            mirror.publish()
    assert "versions: {keep: 2}" in str(raised.value)
    assert contents(url) == first


def test_concurrent_change_is_not_overwritten(
    url: str, first: dict[str, bytes]
) -> None:
    with buckets.opened(url, writes=True) as mirror:
        write(mirror.path / "net", 2)
        write(mirror.path / "new", 1)
        with buckets.opened(url, writes=True) as other:
            write(other.path / "other", 1)
            other.publish()
        mirror.fs.pipe_file(f"{mirror.folder}/net/config.pbtxt", b"of somebody else")
        with pytest.raises(
            PublishError, match="another process changed repository/net in"
        ):
            mirror.publish()
    assert "net/2/model.plan" not in contents(url)


@pytest.mark.parametrize("outside", ["", "/", "/net/", "/../net/x", "2/net/x"])
def test_listed_path_outside_the_folder_is_ignored(
    url: str, first: dict[str, bytes], outside: str
) -> None:
    with buckets.opened(url) as mirror:
        folder = mirror.folder
        assert mirror._name(f"{folder}/net/x", folder) == "repository/net/x"
        assert mirror._name(f"{folder}{outside}", folder) is None


def test_password_in_url_is_refused_and_not_shown() -> None:
    for use in (Store, lambda url: buckets.opened(url).__enter__()):
        with pytest.raises(UsageError, match="has a password") as raised:
            use("sftp://me:hunter22@host/plans")
        assert "hunter22" not in str(raised.value)


def test_url_without_folder_or_files_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="there is nothing at"), buckets.opened(url):
        pass
    with (
        pytest.raises(UsageError, match="names no folder"),
        buckets.opened("memory://"),
    ):
        pass
    with (
        pytest.raises(UsageError, match="no folders over HTTP"),
        buckets.opened("https://host/models"),
    ):
        pass
