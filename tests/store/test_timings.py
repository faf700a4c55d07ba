"""Timing caches in the store: concurrent writers lose none, and only whole ones are read.

A timing cache of these tests is JSON: the kind of GPU, and times by the name of a tactic.
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
    """As TensorRT does on an H100."""
    used, found = [], set[str]()
    for data in caches:
        try:
            is_mine = json.loads(data)["gpu"] == "h100"
        except ValueError:
            is_mine = False
        used.append(is_mine)
        found |= names(data) if is_mine else set()
    return cache(*found), used


def timings(folder: Path) -> Timings:
    return Timings(Store(str(folder / "store")), KIND, combined)


def measured(path: Path, *new: str) -> None:
    """A build writes what it has measured into the machine's timing cache."""
    old = names(path.read_bytes()) if path.is_file() else set()
    path.write_bytes(cache(*old, *new))


def build(folder: Path, machine_name: str, *new: str) -> set[str]:
    """What one machine knows after a build that measures `new`."""
    path = folder / f"{machine_name}.cache"
    shared = timings(folder)
    fetched = shared.fetch(path)
    measured(path, *new)
    shared.keep(path, fetched)
    return names(path.read_bytes())


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "store" / "timing" / KIND).glob("*"))


def test_a_machine_knows_what_others_have_measured(tmp_path: Path) -> None:
    assert build(tmp_path, "one", "a") == {"a"}
    assert build(tmp_path, "other", "b") == {"a", "b"}
    assert build(tmp_path, "one", "c") == {"a", "b", "c"}
    # a new entry replaces those that it contains
    assert [path.suffix for path in entries(tmp_path)] == [".cache", ".json"]


def test_a_build_that_measures_nothing_new_writes_nothing(tmp_path: Path) -> None:
    build(tmp_path, "one", "a")
    before = [(path, path.stat().st_mtime_ns) for path in entries(tmp_path)]
    assert build(tmp_path, "other") == {"a"}
    assert before == [(path, path.stat().st_mtime_ns) for path in entries(tmp_path)]


def test_two_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    """Both have read the same entry, and each removes it."""
    build(tmp_path, "first", "a")
    one, other = timings(tmp_path), timings(tmp_path)
    paths = [tmp_path / "one.cache", tmp_path / "other.cache"]
    fetched = [
        shared.fetch(path) for shared, path in zip((one, other), paths, strict=True)
    ]
    measured(paths[0], "b")
    measured(paths[1], "c")
    one.keep(paths[0], fetched[0])
    other.keep(paths[1], fetched[1])
    assert build(tmp_path, "last") == {"a", "b", "c"}


def test_many_machines_lose_nothing(tmp_path: Path) -> None:
    """They write at once, and now and then one loses its own timing cache during a build."""
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
                measured(path, f"{number}-{step}")
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
def test_what_is_damaged_or_of_others_is_not_read(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if damage == "other kind":
        (tmp_path / "one.cache").write_bytes(cache("a", gpu="l4"))
        # written by a TensorRT that takes it
        Timings(
            Store(str(tmp_path / "store")), KIND, lambda some: (some[0], [True])
        ).keep(tmp_path / "one.cache", {})
    else:
        if damage == "not signed":
            monkeypatch.setenv(signing.KEY_VARIABLE, "the key of somebody else")
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


class Machine:
    """A machine that measures tactics, in the place of TensorRT."""

    def __init__(
        self, folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.folder, self.path = folder, folder / f"{name}.cache"
        monkeypatch.setattr(config, "timing_cache", lambda options: self.path)
        monkeypatch.setattr(
            timing, "combined", lambda builder, caches: combined(caches)
        )

    def build(self, new: str, **options: Any) -> set[str]:
        """What TensorRT has in its timing cache when a build starts that measures `new`."""
        known: list[set[str]] = []

        def compile() -> Plan:
            known.append(
                names(self.path.read_bytes()) if self.path.is_file() else set()
            )
            measured(self.path, new)
            return Plan(new.encode(), {})

        share = options.pop("share", True)
        plans = Plans(Store(str(self.folder / "store")), rebuild=True, share=share)
        plans.build(small(), BuildOptions(**options), compile)
        assert plans.warnings == []
        return known[0]


def test_a_build_uses_the_measurements_of_other_machines(
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
def test_a_timing_cache_is_shared_only_where_no_key_covers_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    Machine(tmp_path, "one", monkeypatch).build("a", **options)
    assert not (tmp_path / "store" / "timing").exists()
    Machine(tmp_path, "two", monkeypatch).build("b")
    assert Machine(tmp_path, "three", monkeypatch).build("c", **options) == set()


def test_machines_of_another_kind_have_another_folder() -> None:
    here = {"flavour": "tensorrt", "tensorrt": "8.6.0", "gpu": {"name": "H100"}}
    kinds = {
        kind(here),
        kind({**here, "tensorrt": "10.3"}),
        kind({**here, "gpu": {"name": "L4"}}),
    }
    assert len(kinds) == 3
