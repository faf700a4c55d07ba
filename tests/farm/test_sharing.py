"""Tasks that record goldens for several builds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.farm import Farm, Target, matrix, sharing
from builder.farm.job import Job
from builder.farm.schedule import Task
from builder.manifest import ModelSpec, load
from builder.parity import Recording, Recordings
from builder.store import Folders, Hashes, Store, goldens_key, shared_request
from tests.cli.conftest import Small, save

TARGETS = (
    Target("a", cpus=4, memory_mib=100),
    Target("b", cpus=2, image="trt-build:1"),
)


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    """A model whose file is large enough."""
    (found,) = load(save(Small(), tmp_path / "net.pt"))
    monkeypatch.setattr(sharing, "LEAST_BYTES", found.path.stat().st_size)
    return found


def recordings(
    spec: ModelSpec, tmp_path: Path, *precisions: str | None, rebuild: bool = False
) -> dict[str, Task]:
    """The recording tasks of jobs for the targets, each with one of the precisions."""
    targets = [
        replace(TARGETS[number % 2], name=f"t{number}", precision=precision)
        for number, precision in enumerate(precisions)
    ]
    farm = Farm("a:1", tuple(targets), environment=("NAME",))
    job = Job(
        "net", "", "store", "net.pt", {}, "v", build={"refit": True}, rebuild=rebuild
    )
    jobs = [
        replace(job, target=target.name, settings={"precision": target.precision})
        for target in targets
    ]
    chosen = [
        (matrix.Combination(spec, target), job)
        for target, job in zip(targets, jobs, strict=True)
    ]
    return sharing.recordings(chosen, farm, Folders(str(tmp_path / "store")))


def test_builds_for_two_targets_share_a_recording(
    spec: ModelSpec, tmp_path: Path
) -> None:
    by_target = recordings(spec, tmp_path, None, None)
    assert list(by_target) == ["net@t0", "net@t1"]
    task = by_target["net@t0"]
    assert task is by_target["net@t1"] and task.group == sharing.GROUP
    job = Job.from_json(task.arguments[0])
    assert job.only_goldens and not job.build and job.settings["flavor"] == "auto"
    assert task.arguments[1:] == (("NAME",), 2)
    # the cores of the smallest build, the memory of the largest, and no GPU
    assert dict(task.demand) == {"CPU": 2.0, "memory": float(100 << 20)}
    assert task.options["runtime_env"] == {"image_uri": "trt-build:1"}


def test_each_precision_has_its_own_goldens(spec: ModelSpec, tmp_path: Path) -> None:
    by_target = recordings(spec, tmp_path, "fp16", "fp32", "fp16", "fp32", "int8")
    assert set(by_target) == {"net@t0", "net@t1", "net@t2", "net@t3"}
    assert (
        by_target["net@t0"] is by_target["net@t2"]
        and by_target["net@t1"] is by_target["net@t3"]
    )
    assert len({task.name for task in by_target.values()}) == 2


def test_no_recording_task_without_a_benefit(
    spec: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recordings(spec, tmp_path, None) == {}
    assert recordings(spec, tmp_path, None, None, rebuild=True) == {}
    monkeypatch.setattr(sharing, "LEAST_BYTES", 1 << 30)
    assert recordings(spec, tmp_path, None, None) == {}


@pytest.mark.parametrize(("seconds", "count"), [(1.9, 0), (2.0, 2)])
def test_previous_recording_time_precedes_file_size(
    spec: ModelSpec, tmp_path: Path, seconds: float, count: int
) -> None:
    ended = {
        "state": "recorded",
        "result": {"seconds": {"load": 9.0, "goldens": seconds}},
    }
    store = Store(str(tmp_path / "store"))
    store.remember(f"net@{sharing.GROUP}", sharing.seconds_to_remember(ended))
    assert len(recordings(spec, tmp_path, None, None)) == count
    assert sharing.seconds_to_remember({**ended, "state": "built"}) == {}


def test_stored_goldens_are_not_recorded_again(spec: ModelSpec, tmp_path: Path) -> None:
    with Hashes() as hashes:
        parts = shared_request(replace(spec, precision="fp16"), hashes)
    Recordings(str(tmp_path / "store"), goldens_key("net", parts)).keep(
        Recording(()), []
    )
    assert recordings(spec, tmp_path, "fp16", "fp16") == {}
    assert len(recordings(spec, tmp_path, "fp32", "fp32")) == 2
