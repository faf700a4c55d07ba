"""Timing caches in the store: writers lose no measurement, and damaged caches are not read.

In these tests, a timing cache is JSON: the kind of GPU, and a time for each tactic.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from builder.engine import BuildOptions, Plan, config, timing
from builder.store import Store, signing
from builder.store.plans import Plans
from builder.store.request import machine
from builder.store.timings import Timings, kind
from tests.store.conftest import small

KIND = "a" * 32


def cache(*names: str, gpu: str = "h100") -> bytes:
    return json.dumps({"gpu": gpu, "times": dict.fromkeys(sorted(names), 1.0)}).encode()


def names(data: bytes) -> set[str]:
    return set(json.loads(data)["times"])


def combined(caches: Sequence[bytes]) -> tuple[bytes, list[bool]]:
    """Combines caches as TensorRT does on an H100."""
    used, found = [], set[str]()
    for data in caches:
        try:
            is_same_gpu = json.loads(data)["gpu"] == "h100"
        except ValueError:
            is_same_gpu = False
        used.append(is_same_gpu)
        found |= names(data) if is_same_gpu else set()
    return cache(*found), used


def timings(folder: Path) -> Timings:
    return Timings(Store(str(folder / "store")), KIND, combined)


def add_measurements(path: Path, *new: str) -> None:
    """Adds tactics to the machine's timing cache, as a build does."""
    old = names(path.read_bytes()) if path.is_file() else set()
    path.write_bytes(cache(*old, *new))


def build(folder: Path, machine_name: str, *new: str) -> set[str]:
    """The tactics in a machine's timing cache after a build that measures `new`."""
    path = folder / f"{machine_name}.cache"
    shared = timings(folder)
    fetched = shared.fetch(path)
    add_measurements(path, *new)
    shared.keep(path, fetched)
    return names(path.read_bytes())


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "store" / "timing" / KIND).glob("*"))


def test_timing_cache_has_measurements_of_other_machines(tmp_path: Path) -> None:
    assert build(tmp_path, "one", "a") == {"a"}
    assert build(tmp_path, "other", "b") == {"a", "b"}
    assert build(tmp_path, "one", "c") == {"a", "b", "c"}
    # a new entry replaces those that it contains
    assert [path.suffix for path in entries(tmp_path)] == [".cache", ".json"]


def test_build_without_new_measurements_writes_nothing(tmp_path: Path) -> None:
    build(tmp_path, "one", "a")
    before = [(path, path.stat().st_mtime_ns) for path in entries(tmp_path)]
    assert build(tmp_path, "other") == {"a"}
    assert before == [(path, path.stat().st_mtime_ns) for path in entries(tmp_path)]


def test_two_concurrent_writers_lose_no_measurements(tmp_path: Path) -> None:
    """Both have read the same entry, and both remove it."""
    build(tmp_path, "first", "a")
    one, other = timings(tmp_path), timings(tmp_path)
    paths = [tmp_path / "one.cache", tmp_path / "other.cache"]
    fetched = [
        shared.fetch(path) for shared, path in zip((one, other), paths, strict=True)
    ]
    add_measurements(paths[0], "b")
    add_measurements(paths[1], "c")
    one.keep(paths[0], fetched[0])
    other.keep(paths[1], fetched[1])
    assert build(tmp_path, "last") == {"a", "b", "c"}


def test_many_concurrent_writers_lose_no_measurements(tmp_path: Path) -> None:
    """Sometimes a machine loses its own timing cache during a build."""
    failures: list[Exception] = []

    def work(number: int) -> None:
        choose = random.Random(number)
        path = tmp_path / f"machine{number}.cache"
        try:
            for step in range(8):
                shared = timings(tmp_path)
                fetched = shared.fetch(path)
                if choose.random() < 0.3:
                    path.unlink(missing_ok=True)
                add_measurements(path, f"{number}-{step}")
                shared.keep(path, fetched)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert build(tmp_path, "last") == {
        f"{n}-{step}" for n in range(6) for step in range(8)
    }


@pytest.mark.parametrize("damage", ["truncated", "forged", "other kind", "not signed"])
def test_damaged_or_foreign_timing_cache_is_not_read(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if damage == "other kind":
        (tmp_path / "one.cache").write_bytes(cache("a", gpu="l4"))
        # written by a TensorRT that accepts it
        Timings(
            Store(str(tmp_path / "store")), KIND, lambda caches: (caches[0], [True])
        ).keep(tmp_path / "one.cache", {})
    else:
        if damage == "not signed":
            monkeypatch.setenv(signing.KEY_VARIABLE, "another signing key")
        build(tmp_path, "one", "a")
        monkeypatch.setenv(signing.KEY_VARIABLE, "the key of the tests")
        if damage == "not signed":
            monkeypatch.setenv(signing.KEY_VARIABLE, "the key of the builder")
        file, _ = entries(tmp_path)
        if damage == "truncated":
            file.write_bytes(file.read_bytes()[:-3])
        elif damage == "forged":
            file.write_bytes(cache("forged"))
    shared = timings(tmp_path)
    assert shared.fetch(tmp_path / "other.cache") == {}
    assert not (tmp_path / "other.cache").is_file()
    assert shared.warnings or shared.store.warnings


def test_timing_cache_that_was_removed_meanwhile_is_not_read(tmp_path: Path) -> None:
    build(tmp_path, "one", "a")
    (data,) = (path for path in entries(tmp_path) if path.suffix == ".cache")
    data.unlink()
    shared = timings(tmp_path)
    assert shared.fetch(tmp_path / "other.cache") == {}
    assert not shared.warnings


class Machine:
    """A machine whose builds measure tactics without TensorRT."""

    def __init__(
        self, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.folder, self.path = folder, folder / f"{name}.cache"
        monkeypatch.setattr(config, "timing_cache", lambda options: self.path)
        monkeypatch.setattr(
            timing, "combined", lambda builder, caches: combined(caches)
        )

    def build(self, new: str, **options: Any) -> set[str]:
        """The tactics in the timing cache at the start of a build that measures `new`."""
        known: list[set[str]] = []

        def compile() -> Plan:
            known.append(
                names(self.path.read_bytes()) if self.path.is_file() else set()
            )
            add_measurements(self.path, new)
            return Plan(new.encode(), {})

        share = options.pop("share", True)
        plans = Plans(Store(str(self.folder / "store")), rebuild=True, share=share)
        plans.build(small(), BuildOptions(**options), compile)
        assert plans.warnings == []
        return known[0]


def test_plans_are_built_with_measurements_of_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Machine(tmp_path, "one", monkeypatch).build("a") == set()
    other = Machine(tmp_path, "other", monkeypatch)
    assert other.build("b") == {"a"}
    assert Machine(tmp_path, "third", monkeypatch).build("c") == {"a", "b"}
    (folder,) = (tmp_path / "store" / "timing").iterdir()
    assert folder.name == kind(machine())


@pytest.mark.parametrize(
    "options",
    [
        {"share": False},
        {"timing_cache": Path("own.cache")},
        {"error_on_timing_cache_miss": True},
    ],
)
def test_private_or_required_timing_cache_is_not_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    Machine(tmp_path, "one", monkeypatch).build("a", **options)
    assert not (tmp_path / "store" / "timing").exists()
    Machine(tmp_path, "two", monkeypatch).build("b")
    assert Machine(tmp_path, "three", monkeypatch).build("c", **options) == set()


def test_kind_depends_on_tensorrt_version_and_gpu() -> None:
    here = {"flavor": "tensorrt", "tensorrt": "8.6.0", "gpu": {"name": "H100"}}
    kinds = {
        kind(here),
        kind({**here, "tensorrt": "10.3"}),
        kind({**here, "gpu": {"name": "L4"}}),
    }
    assert len(kinds) == 3
