"""Publication is complete or does nothing, and leaves no other files."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builder.errors import PublishBlocked, PublishError
from builder.manifest.spec import Runtime
from builder.store import published, retired, staging
from builder.triton import goldens, layout, publish
from builder.triton.config import parse_config
from tests.serving import fakes
from tests.triton.artifacts import TENSORRT, pair, scorer

publishing = __import__("sys").modules["builder.triton.publish"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "repository"


def tree(folder: Path) -> dict[str, str]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in files
    }


def test_published_folder_has_the_documented_layout(repository: Path) -> None:
    folder = publish(scorer(plan=b"plan"), repository)
    assert folder == repository / "scorer"
    files = {"model.plan", "plan.json", "model.py", "trt_build_runtime", "lowered.pt"}
    files |= {"__pycache__"}  # see builder.triton.bytecode
    assert {p.name for p in (folder / "1").iterdir()} == files
    assert {p.stem for p in (folder / "goldens").iterdir()} == {
        "p0-opt",
        "p0-row",
        "p0-min",
        "p0-max",
        "p0-odd",
    }
    assert (folder / "config.pbtxt").exists() and (folder / "trt-build.json").exists()


def test_runtime_options_are_passed_to_the_runtime(repository: Path) -> None:
    folder = publish(
        scorer(runtime=Runtime(cuda_graphs=False, keep_mapped=3)), repository
    )
    facts = json.loads((folder / "1" / "plan.json").read_text())
    _, modules = fakes.runtime()
    assert (
        modules["options"].graphs(facts),
        modules["options"].keep_mapped(facts),
    ) == (False, 3)
    assert (modules["options"].graphs({}), modules["options"].keep_mapped({})) == (
        True,
        0,
    )
    tf32 = replace(
        scorer(serve_as="python"), spec=replace(scorer().spec, precision="tf32")
    )
    plan = json.loads((publish(tf32, repository) / "1" / "plan.json").read_text())
    assert [modules["options"].tf32(record) for record in (plan, facts, {})] == [
        True,
        False,
        False,
    ]


def test_plan_record_of_ensemble_step_names_its_ensemble(repository: Path) -> None:
    """The step then leaves boundary tensors on the GPU."""
    folder = publish(
        replace(scorer(name="whole.0.tensorrt", serve_as="python"), step_of="whole"),
        repository,
    )
    assert json.loads((folder / "1" / "plan.json").read_text())["step_of"] == "whole"
    other = publish(scorer(name="other", serve_as="python"), repository)
    assert "step_of" not in json.loads((other / "1" / "plan.json").read_text())


def test_model_cannot_replace_a_step_of_another_model(repository: Path) -> None:
    step = replace(scorer(name="whole.0.tensorrt", serve_as="python"), step_of="whole")
    publish(step, repository)
    publish(scorer(name="whole", serve_as="python"), tmp := repository.parent / "other")
    assert (tmp / "whole").rename(repository / "whole")
    before = tree(repository)
    with pytest.raises(PublishError, match="is the name of a step of 'whole'"):
        publish(scorer(name="whole.0.tensorrt", serve_as="python"), repository)
    assert tree(repository) == before
    publish(step, repository)  # itself again, as `merge` writes it
    shutil.rmtree(repository / "whole")
    publish(scorer(name="whole.0.tensorrt", serve_as="python"), repository)


def test_concurrently_published_model_is_replaced(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find no model of the name; the second one's rename finds it then."""
    publish(scorer(serve_as="python"), repository)
    real = Path.exists
    missed = [repository / "scorer"]
    monkeypatch.setattr(
        Path,
        "exists",
        lambda path: False if missed[-1:] == [path] and missed.pop() else real(path),
    )
    folder = publish(
        scorer(serve_as="python"),
        repository,
        finish=lambda folder: (folder / "second").touch(),
    )
    assert not missed and (folder / "second").exists()
    assert {path.name for path in repository.parent.iterdir()} == {repository.name}


def test_concurrent_publications_wait_for_the_lock(repository: Path) -> None:
    repository.mkdir(parents=True)
    handle = os.open(repository, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # as another builder holds it
    other = threading.Thread(
        target=publish, args=(scorer(serve_as="python"), repository)
    )
    other.start()
    other.join(timeout=1)
    assert other.is_alive() and not list(repository.iterdir())
    os.close(handle)
    other.join()
    assert (repository / "scorer" / "config.pbtxt").is_file()


def test_version_folder_of_plan_has_only_plan_and_its_record(repository: Path) -> None:
    folder = publish(scorer(plan=b"plan", facts=TENSORRT), repository)
    assert {p.name for p in (folder / "1").iterdir()} == {"model.plan", "plan.json"}


def test_the_sidecar_hashes_every_file(repository: Path) -> None:
    folder = publish(scorer(), repository)
    files = json.loads((folder / "trt-build.json").read_text())["files"]
    assert files == {
        name: digest
        for name, digest in tree(folder).items()
        if name != "trt-build.json" and not name.endswith("__pycache__")
    }


def test_goldens_round_trip(repository: Path) -> None:
    model = scorer()
    folder = publish(model, repository)
    loaded = {g.name: g for g in goldens.load(folder / "goldens")}
    for golden in model.goldens:
        for name, array in golden.inputs.items():
            assert loaded[golden.name].inputs[name].dtype == array.dtype
            np.testing.assert_array_equal(loaded[golden.name].inputs[name], array)


def test_republishing_replaces_model_and_leaves_no_other_files(
    repository: Path,
) -> None:
    publish(scorer(plan=b"one"), repository)
    publish(scorer(plan=b"two"), repository)
    assert (repository / "scorer" / "1" / "model.plan").read_bytes() == b"two"
    assert [p.name for p in repository.iterdir()] == ["scorer"]
    assert [p.name for p in repository.parent.iterdir()] == ["repository"]


def test_replacement_is_atomic_for_readers(repository: Path) -> None:
    target = publish(scorer(plan=b"one"), repository) / "1" / "model.plan"
    missing, done = [], threading.Event()

    def read() -> None:
        while not done.is_set():
            missing.extend([1] if not target.exists() else [])

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(8):
        publish(scorer(plan=f"{number}".encode()), repository)
    done.set()
    reader.join()
    assert not missing


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()]
)
@pytest.mark.parametrize("where", ["write", "sync_tree", "swap"])
def test_interrupted_publication_leaves_the_old_model(
    repository: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    where: str,
) -> None:
    publish(scorer(plan=b"one"), repository)
    before = tree(repository.parent)

    def fail(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(layout if where == "write" else staging, where, fail)
    with pytest.raises((PublishError, KeyboardInterrupt)):
        publish(scorer(plan=b"two"), repository)
    assert tree(repository.parent) == before
    assert [p.name for p in repository.parent.iterdir()] == ["repository"]


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.ENOSPC, "free disk space"),
        (errno.ENAMETOOLONG, "use a shorter path"),
    ],
)
def test_failed_first_publication_leaves_no_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fix: str
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(staging, "sync_tree", fail)
    with pytest.raises(PublishBlocked, match=os.strerror(number)) as caught:
        publish(scorer(), tmp_path / "deeper" / "out")
    assert (caught.value.fix, caught.value.exit_code) == (fix, 4)
    assert list(tmp_path.iterdir()) == []


def test_failed_first_publication_keeps_concurrent_model(
    repository: Path,
) -> None:
    """The failing publication created the folder, and removes it while the other writes to it."""
    shutil.rmtree(repository, ignore_errors=True)

    def fail(folder: Path) -> None:
        publish(
            scorer(name="other"), repository, finish=lambda folder: repository.rmdir()
        )
        raise OSError(errno.EIO, "the disk")

    with pytest.raises(PublishError, match=r"was not published: the disk"):
        publish(scorer(), repository, finish=fail)
    assert [path.name for path in repository.iterdir()] == ["other"]


def test_two_renames_replace_the_missing_atomic_exchange(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(scorer(plan=b"one"), repository)
    monkeypatch.setattr(staging, "exchange", lambda *_: False)
    publish(scorer(plan=b"two"), repository)
    assert (repository / "scorer" / "1" / "model.plan").read_bytes() == b"two"


def test_two_paths_are_exchanged_at_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    assert staging.exchange(tmp_path / "one", tmp_path / "two")
    assert [(tmp_path / name).read_text() for name in ("one", "two")] == ["two", "one"]
    with pytest.raises(FileNotFoundError):
        staging.exchange(tmp_path / "one", tmp_path / "absent")


def test_failed_second_rename_restores_the_old_model(tmp_path: Path) -> None:
    target, new, old = tmp_path / "target", tmp_path / "new", tmp_path / "old"
    target.mkdir()
    (target / "file").write_text("before")
    with pytest.raises(OSError):
        staging.replace(
            new, target, old
        )  # `new` does not exist: the second rename fails
    assert (target / "file").read_text() == "before"


def test_invalid_artifact_writes_nothing(repository: Path) -> None:
    with pytest.raises(PublishError, match="is not a folder name"):
        publish(scorer(name="not a name"), repository)
    assert not repository.exists()


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server reads the repository."""
    monkeypatch.setattr(publishing, "SETTLE_SECONDS", 0)


def steps_of(folder: Path) -> list[str]:
    """The steps that the ensemble's config names."""
    message = parse_config((folder / "config.pbtxt").read_text(), str(folder))
    return [step.model_name for step in message.ensemble_scheduling.step]


def test_step_is_named_by_content_and_hashed_in_the_record(repository: Path) -> None:
    folder = publish(pair(1), repository)
    names = steps_of(folder)
    assert [name.rsplit(".", 1)[0] for name in names] == [
        "pair.0.torch",
        "pair.1.torch",
    ]
    assert {path.name for path in repository.iterdir()} == {"pair", *names}
    record = json.loads((folder / "trt-build.json").read_text())
    assert record["steps"] == names and record["seals"] == {
        name: hashlib.sha256(
            (repository / name / "trt-build.json").read_bytes()
        ).hexdigest()
        for name in names
    }
    for name in names:
        step = repository / name
        assert parse_config((step / "config.pbtxt").read_text(), name).name == name
        own = json.loads((step / "trt-build.json").read_text())
        assert (own["name"], own["step"]) == (name, name.rsplit(".", 1)[0])
        assert own["files"]["config.pbtxt"] == tree(step)["config.pbtxt"]
    assert not list(published.damaged(folder))


def test_equal_step_is_kept_and_changed_step_is_added(
    repository: Path, instant: None
) -> None:
    first = steps_of(publish(pair(1), repository))
    inode = (repository / first[0]).stat().st_ino
    assert steps_of(publish(pair(1), repository)) == first
    assert (repository / first[0]).stat().st_ino == inode
    second = steps_of(publish(pair(2), repository))
    assert not {*first} & {*second}
    assert {path.name for path in repository.iterdir()} == {"pair", *first, *second}


@pytest.mark.parametrize("by", ["publication", "clean_up"])
def test_unused_step_is_removed_after_the_grace_period(
    repository: Path, instant: None, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    first = steps_of(publish(pair(1), repository))
    second = steps_of(publish(pair(2), repository))
    record = json.loads((repository / "pair" / "trt-build.json").read_text())
    assert set(record["retired"]) == {*first}
    publish(pair(2), repository)
    assert {path.name for path in repository.iterdir()} == {"pair", *first, *second}
    later = retired.time.time() + retired.GRACE_SECONDS + 5
    monkeypatch.setattr(retired.time, "time", lambda: later)
    if by == "publication":
        publish(pair(2), repository)
    else:
        assert retired.clean_up(repository) == ()
    assert {path.name for path in repository.iterdir()} == {"pair", *second}
    assert [path.name for path in repository.parent.iterdir()] == ["repository"]


def test_folder_of_another_model_under_the_name_of_a_retired_step_stays(
    repository: Path, instant: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = steps_of(publish(pair(1), repository))
    second = steps_of(publish(pair(2), repository))
    shutil.rmtree(repository / first[0])
    publish(scorer(), repository.parent / "other").rename(repository / first[0])
    later = retired.time.time() + retired.GRACE_SECONDS + 5
    monkeypatch.setattr(retired.time, "time", lambda: later)
    retired.clean_up(repository)
    names = {path.name for path in repository.iterdir()}
    assert names == {"pair", first[0], *second}


def test_unfinished_signature_that_stays_does_not_end_the_tidying(
    repository: Path, instant: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(pair(1), repository)
    second = steps_of(publish(pair(2), repository))
    killed = repository.parent / f".{repository.name}.staging-0"
    killed.mkdir()
    publish(scorer(), repository).rename(killed / f"{staging.OLD}scorer")
    unfinished = f"{published.UNFINISHED_SIGNATURE}0"
    (repository / unfinished).mkdir()
    later = retired.time.time() + retired.GRACE_SECONDS + 5
    monkeypatch.setattr(retired.time, "time", lambda: later)
    assert retired.clean_up(repository) == ("scorer",)
    names = {path.name for path in repository.iterdir()}
    assert names == {"pair", "scorer", unfinished, *second}


def test_reused_step_is_no_longer_retired(repository: Path, instant: None) -> None:
    for generation in (1, 2, 1):
        folder = publish(pair(generation), repository)
    record = json.loads((folder / "trt-build.json").read_text())
    assert (
        not {*record["retired"]} & {*steps_of(folder)} and len(record["retired"]) == 2
    )


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("after", [False, True])
def test_interrupt_at_any_move_leaves_a_complete_ensemble(
    repository: Path,
    instant: None,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    after: bool,
) -> None:
    """Before and after each of the three moves: the exchange that a signal catches is done."""
    old = steps_of(publish(pair(1), repository))
    real, calls = staging.swap, iter(range(10))

    def interrupted(*paths: Path) -> None:
        call = next(calls)
        if call == number and not after:
            raise KeyboardInterrupt
        real(*paths)
        if call == number:
            raise KeyboardInterrupt

    monkeypatch.setattr(staging, "swap", interrupted)
    with pytest.raises(KeyboardInterrupt):
        publish(pair(2), repository)
    now = steps_of(repository / "pair")
    assert (now == old) is not (number == 2 and after)
    assert not list(published.damaged(repository / "pair"))
    assert [path.name for path in repository.parent.iterdir()] == ["repository"]
    if now == old:
        assert {path.name for path in repository.iterdir()} == {"pair", *old}


@pytest.mark.parametrize("what", ["1/plan.json", "trt-build.json", "other"])
def test_modified_step_is_detected_and_repaired(
    repository: Path, instant: None, what: str
) -> None:
    folder = publish(pair(1), repository)
    step = repository / steps_of(folder)[0]
    if what == "other":  # another whole step under the name
        other = publish(scorer(serve_as="python"), repository.parent / "other")
        shutil.rmtree(step)
        other.rename(step)
    else:
        (step / what).write_text((step / what).read_text() + " ")
    assert next(published.damaged(folder)).startswith(f"../{step.name}/")
    if what != "other":
        publish(pair(1), repository)
        assert not list(published.damaged(folder))


def test_a_killed_publication_is_repaired_by_the_next_run(repository: Path) -> None:
    """Killed between the two renames: the former model is in staging, and its folder is missing."""
    target = publish(scorer(serve_as="python"), repository)
    before = tree(repository)
    left = repository.parent / f".{repository.name}.staging-0123"
    left.mkdir()
    target.rename(left / "old scorer")
    assert staging.recover(repository) == ("scorer",)
    assert tree(repository) == before
    assert [path.name for path in repository.parent.iterdir()] == ["repository"]


def test_the_staging_folder_of_a_running_process_is_left_alone(
    repository: Path,
) -> None:
    repository.mkdir(parents=True)
    with staging.staging(repository) as folder:
        assert staging.recover(repository) == () and folder.is_dir()
    assert not folder.exists()


def test_recovery_does_not_replace_a_newer_model(repository: Path) -> None:
    publish(scorer(serve_as="python"), repository)
    before = tree(repository)
    left = repository.parent / f".{repository.name}.staging-0123"
    (left / "old scorer").mkdir(parents=True)
    assert staging.recover(repository) == () and not left.exists()
    assert tree(repository) == before
