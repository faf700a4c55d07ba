"""Numbered versions: added when something changed, served by number, rolled back, pruned and
promoted.
"""

from __future__ import annotations

import errno
import functools
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from unittest.mock import Mock

import pytest

from builder.errors import PublishBlocked, PublishError, UsageError
from builder.manifest.spec import Versions
from builder.store import edits, published, retired
from builder.store.hashes import Hashes
from builder.torchscript import sha256
from builder.triton import (
    adopt_edits,
    copying,
    history,
    merge,
    publish,
    versions,
)
from builder.triton.artifact import ModelArtifact
from builder.triton.config import parse_config
from tests.triton.artifacts import pair, scorer

KEEP = Versions(keep=3)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "repository"


@functools.cache
def model() -> ModelArtifact:
    return scorer(serve_as="python")


def net(number: int, kept: Versions = KEEP) -> ModelArtifact:
    """A model whose content depends on the number."""
    artifact = model()
    return replace(
        artifact,
        spec=replace(artifact.spec, versions=kept),
        lowered=artifact.lowered + bytes([number]),
    )


def publish_three_versions(repository: Path, kept: Versions = KEEP) -> Path:
    for number in (1, 2, 3):
        folder = publish(net(number, kept), repository)
    return folder


def numbers(folder: Path) -> list[int]:
    return [version.number for version in published.versions(folder)]


def text(folder: Path, number: int) -> bytes:
    return (folder / str(number) / "lowered.pt").read_bytes()[-1:]


def whole(folder: Path) -> bool:
    return not any(
        name for version in published.versions(folder) for name in version.damaged()
    )


Change = Callable[[Path], tuple[Path, str]]


def add_lines(name: str, step: int | None = None) -> Change:
    """A function that adds a line to a file of the model in a folder or of its step, and returns
    the file with its text.
    """

    def change(folder: Path) -> tuple[Path, str]:
        if step is not None:
            folder = folder.parent / sorted(published.step_names(folder))[step]
        file = folder / name
        file.parent.mkdir(exist_ok=True)
        text = file.read_text() if file.exists() else ""
        file.write_text(f"{text}# by hand\n")
        return file, f"{text}# by hand\n"

    return change


def test_only_a_changed_model_is_a_new_version(repository: Path) -> None:
    folder = publish_three_versions(repository)
    assert numbers(folder) == [3, 2, 1] and whole(folder)
    assert [text(folder, number) for number in (1, 2, 3)] == [b"\1", b"\2", b"\3"]
    publish(net(3), repository)
    assert numbers(folder) == [3, 2, 1]
    publish(net(4), repository)
    assert numbers(folder) == [4, 3, 2] and whole(folder)
    assert not (folder / "1").exists() and not (folder / "versions" / "1").exists()


@pytest.mark.parametrize("kept", [KEEP, Versions()])
def test_history_has_the_time_of_publication(repository: Path, kept: Versions) -> None:
    (entry,) = history.history(publish(net(1, kept), repository))
    published_at = datetime.fromisoformat(entry.published_at or "")
    assert abs(datetime.now(timezone.utc) - published_at) < timedelta(minutes=1)


def test_only_named_versions_are_served(repository: Path) -> None:
    folder = publish_three_versions(repository)
    assert versions.served(folder) == [3]
    (folder / "9").mkdir()
    assert versions.served(folder) == [3] and versions.foreign(folder) == []
    with Hashes() as hashes:
        assert edits.foreign(folder) == ["9/"]
        assert any(
            "net/9/" in note or "9/ was not written by" in note
            for note in edits.notes(folder, hashes)
        )
    plain = publish(scorer(name="plain", serve_as="python"), repository)
    (plain / "2").mkdir()
    assert versions.foreign(plain) == [2]


def test_equal_configs_are_served_together(repository: Path) -> None:
    folder = publish_three_versions(repository, Versions(keep=3, serve=2))
    assert versions.served(folder) == [3, 2]
    changed = net(4, Versions(keep=3, serve=3))
    publish(replace(changed, spec=replace(changed.spec, instances=2)), repository)
    assert versions.served(folder) == [4]


def test_rollback_serves_earlier_version_and_keeps_the_newer(repository: Path) -> None:
    folder = publish_three_versions(repository)
    assert history.rollback(folder, None) == (3, 2)
    assert (
        numbers(folder) == [2, 3, 1]
        and versions.served(folder) == [2]
        and whole(folder)
    )
    assert published.read(folder / "trt-build.json")[published.ROLLED_BACK] == 3
    assert not edits.foreign(folder)
    with Hashes() as hashes:
        assert edits.edits(folder, hashes) == []
    assert history.rollback(folder, 3) == (2, 3)
    assert numbers(folder) == [3, 2, 1]
    assert published.ROLLED_BACK not in published.read(folder / "trt-build.json")
    assert history.rollback(folder, 1) == (3, 1)
    publish(net(9), repository)
    assert numbers(folder) == [4, 3, 1]  # the one that was served stays
    assert [entry.state for entry in history.history(folder)] == [
        "current",
        "kept",
        "kept",
    ]


def test_failed_rollback_changes_nothing(repository: Path) -> None:
    folder = publish_three_versions(repository)
    (folder / "2" / "lowered.pt").unlink()
    (folder / "2" / "lowered.pt").write_bytes(b"other")
    with pytest.raises(
        PublishError, match=r"version 2 of 'scorer' is damaged: 2/lowered\.pt"
    ):
        history.rollback(folder, 2)
    with pytest.raises(UsageError, match="has no other version 7"):
        history.rollback(folder, 7)
    with pytest.raises(UsageError, match="is not a model"):
        history.rollback(repository / "none", None)
    assert history.history(folder)[1].damaged == "2/lowered.pt"
    (folder / "9").mkdir()
    with pytest.raises(UsageError, match="did not write: scorer/9/"):
        history.rollback(folder, 1)
    assert numbers(folder) == [3, 2, 1]


def test_interrupted_prune_changes_nothing(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        folder = publish(net(number, Versions(keep=2, serve=2)), repository)
    before = (folder / "config.pbtxt").read_text()
    monkeypatch.setattr(history, "move_in", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        history.prune(folder, 1)
    assert (folder / "config.pbtxt").read_text() == before
    assert versions.served(folder) == [2, 1]


@pytest.mark.slow
def test_prune_keeps_current_version_and_reuses_no_number(repository: Path) -> None:
    folder = publish_three_versions(repository)
    history.rollback(folder, 1)
    assert history.prune(folder, 2) == [2]
    assert numbers(folder) == [1, 3] and whole(folder)
    assert history.prune(folder, 1) == [3] and numbers(folder) == [1]
    assert history.prune(folder, 1) == []
    publish(net(8), repository)
    assert numbers(folder) == [4, 1]


def test_manifest_without_versions_does_not_delete_versions(repository: Path) -> None:
    folder = publish_three_versions(repository)
    with pytest.raises(UsageError, match="3 versions, and the new model keeps none"):
        publish(net(4, Versions()), repository)
    assert numbers(folder) == [3, 2, 1]
    history.prune(folder, 1)
    publish(net(4, Versions()), repository)
    assert (
        numbers(folder) == [1]
        and (folder / "1").is_dir()
        and not (folder / "3").exists()
    )


def test_versions_can_be_enabled_later(repository: Path) -> None:
    folder = publish(net(1, Versions()), repository)
    publish(net(2), repository)
    assert numbers(folder) == [2, 1] and whole(folder)


@pytest.mark.slow
def test_promotion_copies_the_model_once(repository: Path, tmp_path: Path) -> None:
    folder, other = publish_three_versions(repository), tmp_path / "live"
    assert history.promote(folder, other).number == 1
    assert numbers(other / "scorer") == [1] and text(other / "scorer", 1) == b"\3"
    assert history.promote(folder, other).state == "unchanged"
    history.rollback(folder, 2)
    assert history.promote(folder, other).number == 2
    assert numbers(other / "scorer") == [2, 1] and text(other / "scorer", 2) == b"\2"
    assert whole(other / "scorer") and whole(folder)
    (folder / "2" / "lowered.pt").unlink()
    with pytest.raises(PublishError, match=r"damaged: 2/lowered\.pt"):
        history.promote(folder, other)


def test_promotion_replaces_nothing_else(repository: Path, tmp_path: Path) -> None:
    folder, target = publish(net(1), repository), tmp_path / "live" / "scorer"
    target.mkdir(parents=True)
    (target / "config.pbtxt").write_text("by hand")
    with pytest.raises(UsageError, match="which trt-build did not write"):
        history.promote(folder, tmp_path / "live")
    assert (target / "config.pbtxt").read_text() == "by hand"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (add_lines("config.pbtxt"), "pair/config.pbtxt was edited by hand"),
        (add_lines("1/notes.txt"), "pair/1/notes.txt is a file that trt-build did"),
        (add_lines("2/model.py"), "pair/2/ is a version that trt-build did not"),
        (
            add_lines("config.pbtxt", step=0),
            r"pair\.0.*config.pbtxt was edited by hand",
        ),
        (add_lines("notes.txt", step=1), r"pair\.1.*/notes.txt is a file that"),
    ],
)
def test_publication_without_options_loses_no_changes(
    repository: Path, tmp_path: Path, change: Change, words: str
) -> None:
    """The fix names no option, because promote, push, merge and the farm have none for it."""
    target = publish(pair(1), tmp_path / "live")
    file, text = change(target)
    folder = publish(pair(2), repository)
    for publication in (
        lambda: history.promote(folder, target.parent),
        lambda: merge([repository], target.parent),
    ):
        with pytest.raises(UsageError, match=words) as refused:
            publication()
        assert "--" not in str(refused.value.fix)
    assert file.read_text() == text


def test_promotion_of_steps_reports_a_full_disk(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = publish(pair(1), repository)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr("shutil.copyfile", Mock(side_effect=full))
    with pytest.raises(PublishBlocked, match="No space left on device") as refused:
        history.promote(folder, tmp_path / "live")
    assert refused.value.fix == "free disk space"
    assert not (tmp_path / "live").exists()


def test_incompatible_rollback_is_refused(repository: Path) -> None:
    publish(net(1), repository)
    changed = net(2)
    outputs = tuple(replace(io, name=f"{io.name}_2") for io in changed.outputs)
    goldens = tuple(
        replace(g, outputs={f"{name}_2": array for name, array in g.outputs.items()})
        for g in changed.goldens
    )
    folder = publish(replace(changed, outputs=outputs, goldens=goldens), repository)
    with pytest.raises(UsageError, match="is no longer there"):
        history.rollback(folder, 1)
    assert history.rollback(folder, 1, accept=True) == (2, 1)


@pytest.mark.slow
def test_kept_versions_of_an_ensemble_keep_their_steps(
    repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(retired, "GRACE_SECONDS", 0.0)
    steps: list[set[str]] = []
    for generation in (1, 2):
        artifact = pair(generation)
        artifact = replace(
            artifact,
            spec=replace(artifact.spec, versions=Versions(keep=2)),
        )
        folder = publish(artifact, repository)
        steps.append(set(published.read(folder / "trt-build.json")["steps"]))
    name = folder.name
    there = {path.name for path in repository.iterdir()}
    assert steps[0] != steps[1] and there == {name} | steps[0] | steps[1]
    assert history.rollback(folder, None) == (2, 1) and whole(folder)
    message = parse_config((folder / "config.pbtxt").read_text(), "config")
    assert {step.model_name for step in message.ensemble_scheduling.step} == steps[0]
    live = tmp_path / "live"
    assert history.promote(folder, live).number == 1
    assert {path.name for path in live.iterdir()} == {name} | steps[0] and whole(
        live / name
    )
    history.prune(folder, 1)
    assert {path.name for path in repository.iterdir()} == {name} | steps[0]
    shutil.rmtree(repository / sorted(steps[0])[0])
    assert not whole(folder)


@pytest.mark.parametrize("failing", range(3))
def test_removal_of_an_ensemble_is_whole(
    repository: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """If one of its renames fails, nothing is removed. A killed one is finished by the next."""
    folder = publish(pair(1), repository)
    there = sorted(path.name for path in repository.iterdir())
    extra = folder / "notes.txt"
    extra.touch()
    with pytest.raises(
        UsageError, match="files that trt-build did not write: pair/notes"
    ):
        history.remove(folder)
    extra.unlink()
    rename, moved = Path.rename, []

    def fail(path: Path, target: Path) -> object:
        moved.append(path.name)
        if len(moved) == failing + 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(PublishBlocked, match="'pair' was not removed"):
            history.remove(folder)
    assert moved[0] == folder.name
    assert sorted(path.name for path in repository.iterdir()) == there and whole(folder)
    shutil.rmtree(folder)
    history.require_removable(repository, [folder.name])
    assert history.remove(folder) == []
    assert not any(repository.iterdir())
    with pytest.raises(UsageError, match="no model"):
        history.require_removable(repository, [folder.name])


def test_names_that_differ_only_in_case_are_refused(
    repository: Path, tmp_path: Path
) -> None:
    publish(net(1), repository).rename(repository / "Scorer")
    other = publish(net(1), tmp_path / "other")
    for change in (
        lambda: publish(net(1), repository),
        lambda: history.promote(other, repository),
    ):
        with pytest.raises(UsageError, match="'Scorer', whose name differs") as refused:
            change()
        assert f"trt-build remove {repository} Scorer" in str(refused.value.fix)
    assert [path.name for path in repository.iterdir()] == ["Scorer"]


def secret_of(tmp_path: Path) -> Path:
    """A file that no repository may get a copy of."""
    file = tmp_path / "secret.txt"
    file.write_text("a secret")
    return file


@pytest.mark.parametrize("where", ["config.pbtxt", "extra", "1/extra"])
def test_symlink_in_model_is_damage_and_not_followed(
    repository: Path, tmp_path: Path, where: str
) -> None:
    folder = publish(net(1), repository)
    (folder / where).unlink(missing_ok=True)
    (folder / where).symlink_to(secret_of(tmp_path))
    (entry,) = history.history(folder)
    assert entry.damaged == f"scorer/{where} is a link"
    for act in (
        lambda: history.promote(folder, tmp_path / "live"),
        lambda: history.rollback(folder, None),
        lambda: adopt_edits(folder, replace(net(1).spec, manifest=tmp_path / "m.yaml")),
    ):
        with pytest.raises(PublishError, match=f"holds a link: scorer/{where}"):
            act()
    assert not (tmp_path / "live").exists()


def test_step_with_symlink_is_not_promoted(repository: Path, tmp_path: Path) -> None:
    folder = publish(pair(1), repository)
    step = sorted(published.step_names(folder))[0]
    (repository / step / "extra").symlink_to(secret_of(tmp_path))
    with pytest.raises(PublishError, match="holds a link"):
        history.promote(folder, tmp_path / "live")
    assert not (tmp_path / "live").exists()


def test_files_outside_the_model_are_not_copied_or_overwritten(
    repository: Path, tmp_path: Path
) -> None:
    secret = secret_of(tmp_path)
    folder = publish(net(1), repository)
    record = published.read(folder / published.SIDECAR)
    files = {**record["files"], "../../secret.txt": sha256(secret)}
    published.write(folder, {**record, "files": files})
    with pytest.raises(UsageError, match="not a model that trt-build published"):
        history.promote(folder, tmp_path / "live")
    assert secret.read_text() == "a secret" and not (tmp_path / "live").exists()


def test_model_that_cannot_be_read_is_not_left_out(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = publish(net(1), repository)
    (repository / "lost+found").mkdir()
    assert history.models(repository) == [folder]
    monkeypatch.setattr(os, "access", Mock(return_value=False))
    for read in (
        lambda: history.models(repository),
        lambda: merge([repository], tmp_path / "out"),
    ):
        with pytest.raises(PermissionError):
            read()


def test_file_without_permission_is_not_damaged(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = publish(net(1), repository)
    denied = PermissionError(errno.EACCES, "Permission denied", str(folder / "x"))
    monkeypatch.setattr(Hashes, "sha256", Mock(side_effect=denied))
    for read in (
        lambda: history.history(folder),
        lambda: list(published.damaged(folder)),
    ):
        with pytest.raises(PermissionError):
            read()


@pytest.mark.parametrize("reader", ["promote", "merge", "history"])
def test_model_that_is_replaced_while_it_is_read(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reader: str
) -> None:
    """Files of two publications would be copied, or compared with one record."""
    kept = Versions() if reader == "merge" else KEEP
    folder = publish(net(1, kept), repository)
    replaced = Mock()
    function = {
        "promote": (versions, "copied"),
        "merge": (copying, "copy"),
        "history": (history, "_entry"),
    }[reader]
    real = getattr(*function)

    def replace_first(*arguments: object) -> object:
        if not replaced.called:
            replaced()
            publish(net(2, kept), repository)
        return real(*arguments)

    monkeypatch.setattr(*function, replace_first)
    if reader == "history":
        entries = history.history(folder)
        assert [entry.number for entry in entries] == [2, 1]
        return
    with pytest.raises(PublishError, match="another process replaced 'scorer'") as torn:
        if reader == "promote":
            history.promote(folder, tmp_path / "live")
        else:
            merge([repository], tmp_path / "live")
    assert torn.value.fix == "run the command again"
    assert not (tmp_path / "live").exists()


@pytest.mark.parametrize("returns", [True, False])
def test_history_waits_for_a_folder_that_is_gone_for_a_moment(
    repository: Path, monkeypatch: pytest.MonkeyPatch, returns: bool
) -> None:
    """Without an atomic exchange, a publication moves a model out and the next one in."""
    folder = publish(net(1, KEEP), repository)
    hidden = folder.rename(repository.parent / "hidden")
    move_back = Mock(side_effect=lambda _: returns and hidden.rename(folder))
    monkeypatch.setattr("builder.triton.history.time.sleep", move_back)
    if returns:
        assert [entry.number for entry in history.history(folder)] == [1]
        return
    with pytest.raises(UsageError, match="is not a model that trt-build published"):
        history.history(folder)


@pytest.mark.parametrize(
    "changed",
    [
        {"source": {"sha256": {"a": 1}}},
        {"precision": ["fp16"]},
        {"published_at": 9},
        {"result": {"parity": {"absolute": "small"}}},
        {"result": {"parity": ["absolute"]}},
    ],
)
def test_record_with_other_types_is_refused(
    repository: Path, changed: dict[str, object]
) -> None:
    folder = publish(net(1), repository)
    record = published.read(folder / published.SIDECAR)
    names = {"published_at": versions.PUBLISHED, "result": published.RESULT}
    published.write(
        folder, {**record, **{names.get(key, key): v for key, v in changed.items()}}
    )
    with pytest.raises(UsageError, match="differs from the form"):
        history.history(folder)
