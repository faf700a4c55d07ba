"""Publication: whole or not at all, and nothing left behind."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builder.errors import PublishError
from builder.manifest.spec import Runtime
from builder.triton import goldens, layout, publish
from builder.triton import publish as publish_function
from tests.serving import fakes
from tests.triton.artifacts import TENSORRT, scorer

publishing = __import__("sys").modules["builder.triton.publish"]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "repository"


def tree(folder: Path) -> dict[str, str]:
    files = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_the_layout_is_what_the_contract_says(repository: Path) -> None:
    folder = publish(scorer(plan=b"plan"), repository)
    assert folder == repository / "scorer"
    files = {"model.plan", "plan.json", "model.py", "trt_build_runtime", "lowered.pt"}
    assert {p.name for p in (folder / "1").iterdir()} == files
    assert {p.stem for p in (folder / "goldens").iterdir()} == {
        "p0-opt",
        "p0-row",
        "p0-min",
        "p0-max",
        "p0-odd",
    }
    assert (folder / "config.pbtxt").exists() and (folder / "trt-build.json").exists()


def test_what_the_manifest_says_of_the_runtime_reaches_the_runtime(repository: Path) -> None:
    folder = publish(scorer(runtime=Runtime(cuda_graphs=False, keep_mapped=3)), repository)
    facts = json.loads((folder / "1" / "plan.json").read_text())
    _, modules = fakes.runtime()
    assert (modules["options"].graphs(facts), modules["options"].keep_mapped(facts)) == (False, 3)
    assert (modules["options"].graphs({}), modules["options"].keep_mapped({})) == (True, 0)
    tf32 = replace(scorer(serve_as="python"), spec=replace(scorer().spec, precision="tf32"))
    told = json.loads((publish(tf32, repository) / "1" / "plan.json").read_text())
    assert [modules["options"].tf32(said) for said in (told, facts, {})] == [True, False, False]


def test_the_runtime_of_an_ensembles_step_knows_that_it_is_one(repository: Path) -> None:
    """Then it leaves on the GPU what it hands on."""
    folder = publish(
        replace(scorer(name="whole.0.tensorrt", serve_as="python"), step_of="whole"), repository
    )
    assert json.loads((folder / "1" / "plan.json").read_text())["step_of"] == "whole"
    other = publish(scorer(name="other", serve_as="python"), repository)
    assert "step_of" not in json.loads((other / "1" / "plan.json").read_text())


def test_no_model_takes_the_place_of_another_models_step(repository: Path) -> None:
    step = replace(scorer(name="whole.0.tensorrt", serve_as="python"), step_of="whole")
    publish(step, repository)
    publish(scorer(name="whole", serve_as="python"), tmp := repository.parent / "other")
    assert (tmp / "whole").rename(repository / "whole")
    before = tree(repository)
    with pytest.raises(PublishError, match="is the name of a step of 'whole'"):
        publish(scorer(name="whole.0.tensorrt", serve_as="python"), repository)
    assert tree(repository) == before
    publish(step, repository)  # itself again, as `merge` writes it


def test_a_builder_that_is_faster_is_replaced(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both find no model of the name; the second one's rename finds it then."""
    publish(scorer(serve_as="python"), repository)
    real = Path.exists
    missed = [repository / "scorer"]
    monkeypatch.setattr(
        Path, "exists", lambda path: False if missed[-1:] == [path] and missed.pop() else real(path)
    )
    folder = publish(
        scorer(serve_as="python"), repository, finish=lambda folder: (folder / "second").touch()
    )
    assert not missed and (folder / "second").exists()
    assert {path.name for path in repository.parent.iterdir()} == {repository.name}


def test_one_builder_at_a_time_moves_its_folders_in(repository: Path) -> None:
    repository.mkdir(parents=True)
    handle = os.open(repository, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # as another builder holds it
    other = threading.Thread(target=publish, args=(scorer(serve_as="python"), repository))
    other.start()
    other.join(timeout=1)
    assert other.is_alive() and not list(repository.iterdir())
    os.close(handle)
    other.join()
    assert (repository / "scorer" / "config.pbtxt").is_file()


def test_a_folder_for_tritons_own_backend_has_the_plan_alone(repository: Path) -> None:
    folder = publish(scorer(plan=b"plan", facts=TENSORRT), repository)
    assert {p.name for p in (folder / "1").iterdir()} == {"model.plan", "plan.json"}


def test_the_sidecar_hashes_every_file(repository: Path) -> None:
    folder = publish(scorer(), repository)
    files = json.loads((folder / "trt-build.json").read_text())["files"]
    assert files == {
        name: digest for name, digest in tree(folder).items() if name != "trt-build.json"
    }


def test_goldens_come_back_as_they_went(repository: Path) -> None:
    model = scorer()
    folder = publish(model, repository)
    loaded = {g.name: g for g in goldens.load(folder / "goldens")}
    for golden in model.goldens:
        for name, array in golden.inputs.items():
            assert loaded[golden.name].inputs[name].dtype == array.dtype
            np.testing.assert_array_equal(loaded[golden.name].inputs[name], array)


def test_publishing_again_replaces_and_leaves_nothing_beside(repository: Path) -> None:
    publish(scorer(plan=b"one"), repository)
    publish(scorer(plan=b"two"), repository)
    assert (repository / "scorer" / "1" / "model.plan").read_bytes() == b"two"
    assert [p.name for p in repository.iterdir()] == ["scorer"]
    assert [p.name for p in repository.parent.iterdir()] == ["repository"]


def test_a_reader_finds_a_whole_model_at_every_moment_of_a_replacement(repository: Path) -> None:
    target = publish(scorer(plan=b"one"), repository) / "1" / "model.plan"
    missing, done = [], threading.Event()

    def read() -> None:
        while not done.is_set():
            missing.extend([1] if not target.exists() else [])

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(20):
        publish(scorer(plan=f"{number}".encode()), repository)
    done.set()
    reader.join()
    assert not missing


@pytest.mark.parametrize(
    "failure", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), KeyboardInterrupt()]
)
@pytest.mark.parametrize("where", ["write", "_sync_tree", "_swap"])
def test_an_interruption_leaves_what_stood_before(
    repository: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException, where: str
) -> None:
    publish(scorer(plan=b"one"), repository)
    before = tree(repository.parent)

    def fail(*_: Any, **__: Any) -> None:
        raise failure

    monkeypatch.setattr(layout if where == "write" else publishing, where, fail)
    with pytest.raises((PublishError, KeyboardInterrupt)):
        publish_function(scorer(plan=b"two"), repository)
    assert tree(repository.parent) == before
    assert [p.name for p in repository.parent.iterdir()] == ["repository"]


def test_a_first_model_that_fails_leaves_no_repository(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(publishing, "_sync_tree", fail)
    with pytest.raises(PublishError, match="No space left") as caught:
        publish(scorer(), repository)
    assert (caught.value.fix, caught.value.exit_code) == ("free disk space", 4)
    assert not repository.exists() and list(repository.parent.iterdir()) == []


def test_where_the_kernel_cannot_exchange_two_renames_do_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(scorer(plan=b"one"), repository)
    monkeypatch.setattr(publishing, "_exchange", lambda *_: False)
    publish(scorer(plan=b"two"), repository)
    assert (repository / "scorer" / "1" / "model.plan").read_bytes() == b"two"


def test_between_the_two_renames_a_failure_puts_the_old_model_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, new, old = tmp_path / "target", tmp_path / "new", tmp_path / "old"
    target.mkdir()
    (target / "file").write_text("before")
    with pytest.raises(OSError):
        publishing._replace(new, target, old)  # `new` does not exist: the second rename fails
    assert (target / "file").read_text() == "before"


def test_an_artifact_that_triton_could_not_serve_writes_nothing(repository: Path) -> None:
    with pytest.raises(PublishError):
        publish(scorer(name="not a name"), repository)
    assert not repository.exists()
