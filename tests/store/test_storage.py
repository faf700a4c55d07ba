"""An entry is complete or absent: damage is detected, and no reader sees a part of an entry."""

from __future__ import annotations

import json
import socket
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from builder.engine import BuildOptions, Plan
from builder.errors import EnvironmentProblem, UsageError
from builder.store import Store, because, last, signing
from builder.store.plans import Plans

KEY = "ab" + "0" * 62
PLAN = Plan(b"a plan" * 100, {"flavor": "tensorrt-rtx"})
PARTS = {"precision": "fp32"}


@pytest.fixture(params=["directory", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(
        str(tmp_path / "store")
        if request.param == "directory"
        else f"memory://{uuid.uuid4().hex}"
    )


def files(store: Store) -> list[str]:
    return [str(path) for path in store.fs.find(store.root)]


def test_put_entry_is_found_with_parts_and_facts(store: Store) -> None:
    assert store.get(KEY) is None
    store.put(KEY, PARTS, PLAN)
    entry = Store(store.url).get(KEY)
    assert entry is not None
    assert (entry.plan, entry.parts) == (PLAN, PARTS)
    assert store.get("ab" + "1" * 62) is None


@pytest.mark.parametrize("which", ["plan", "json"])
@pytest.mark.parametrize("damage", ["truncated", "altered", "emptied", "removed"])
def test_damaged_entry_is_ignored_and_repaired_by_the_next_build(
    store: Store, which: str, damage: str
) -> None:
    store.put(KEY, PARTS, PLAN)
    path = next(name for name in files(store) if name.endswith(which))
    data = store.fs.cat_file(path)
    if damage == "removed":
        store.fs.rm_file(path)
    else:
        middle = len(data) // 2
        damaged_data = {
            "truncated": data[:middle],
            "altered": data[:middle] + b"#" + data[middle + 1 :],
            "emptied": b"",
        }
        store.fs.pipe_file(path, damaged_data[damage])
    assert store.get(KEY) is None
    store.put(KEY, PARTS, PLAN)
    assert store.get(KEY) is not None


def test_record_of_another_key_is_ignored(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.put(KEY, PARTS, PLAN)
    (tmp_path / "plans" / "ab" / KEY).rename(
        tmp_path / "plans" / "ab" / ("ab" + "2" * 62)
    )
    assert store.get("ab" + "2" * 62) is None


def test_interrupted_upload_leaves_no_entry_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupts each write in turn: the data is written first, the record last."""
    store = Store(str(tmp_path))
    real = store.fs.mv
    for allowed in (0, 1):
        count = iter(range(10))

        def move(
            source: str, target: str, count: Any = count, allowed: int = allowed
        ) -> None:
            if next(count) >= allowed:
                raise KeyboardInterrupt
            real(source, target)

        monkeypatch.setattr(store.fs, "mv", move)
        with pytest.raises(KeyboardInterrupt):
            store.put(KEY, PARTS, PLAN)
        assert store.get(KEY) is None
        assert not [name for name in files(store) if name.endswith(".tmp")]
        assert [Path(name).suffix for name in files(store)] == [".plan"] * allowed


def test_concurrent_readers_see_only_complete_entries(tmp_path: Path) -> None:
    """TensorRT's plans differ from build to build, so the builders write different plans under one
    key.
    """
    store, done, seen = Store(str(tmp_path)), threading.Event(), []

    def build(number: int) -> None:
        for position in range(30):
            store.put(
                KEY, PARTS, Plan(bytes([number]) * (200_000 + position), {"by": number})
            )

    def read() -> None:
        while not done.is_set():
            entry = store.get(KEY)
            if entry is not None:
                seen.append(set(entry.plan.data) == {entry.plan.facts["by"]})

    builders = [threading.Thread(target=build, args=(number,)) for number in (1, 2)]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in (*readers, *builders):
        thread.start()
    for thread in builders:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert len(seen) > 10
    assert all(seen)


def test_invalid_url_and_missing_package_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match="--store nonsense://x"):
        Store("nonsense://x")
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(EnvironmentProblem, match="s3fs"):
        Store("s3://bucket/plans")


def test_plan_is_compiled_once_and_then_found(store: Store, conversion: Any) -> None:
    built = []

    def compile() -> Plan:
        built.append(1)
        return PLAN

    first, again = Plans(store), Plans(store)
    assert (
        first.build(conversion, BuildOptions(), compile)
        == again.build(conversion, BuildOptions(), compile)
        == PLAN
    )
    assert len(built) == 1
    reused = [plans.records["model"].found for plans in (first, again)]
    assert reused == [False, True]
    assert first.records["model"].because == "no earlier build"
    assert Plans(store, rebuild=True).build(conversion, BuildOptions(), compile) == PLAN
    assert len(built) == 2
    json.dumps(again.record())


def test_reason_names_part_changed_since_last_plan(
    conversion: Any,
) -> None:
    plans = Plans(None)
    plans.build(conversion, BuildOptions(), lambda: PLAN)
    later = Plans(None, {"model": plans.record()["model"]["parts"]})
    later.build(conversion, BuildOptions(optimization_level=2), lambda: PLAN)
    assert later.records["model"].because == "options.optimization_level none -> 2"
    same = Plans(None, {"model": plans.record()["model"]["parts"]})
    same.build(conversion, BuildOptions(), lambda: PLAN)
    assert same.records["model"].because == "its plan was not in the store"


def test_unwritable_store_warns_and_builds_the_plan(
    tmp_path: Path, conversion: Any
) -> None:
    (tmp_path / "file").write_text("")
    plans = Plans(Store(str(tmp_path / "file")))
    assert plans.build(conversion, BuildOptions(), lambda: PLAN) == PLAN
    assert "could not be written" in plans.warnings[-1]


def test_unreachable_store_warns_and_builds_the_plan(conversion: Any) -> None:
    """fsspec connects to an FTP server when the store is created."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    plans = Plans(Store(f"ftp://127.0.0.1:{port}/plans"))
    assert plans.build(conversion, BuildOptions(), lambda: PLAN) == PLAN
    assert [("could not be read" in w, "refused" in w) for w in plans.warnings] == [
        (True, True),
        (False, True),
    ]
    assert last(f"ftp://127.0.0.1:{port}/plans", "small") is None


def test_because_lists_changed_parts() -> None:
    before = {
        "precision": "fp32",
        "source": "a" * 64,
        "inputs": [{"name": "x", "dtype": "float32"}],
        "gpu": None,
    }
    after = {
        "precision": "fp16",
        "source": "b" * 64,
        "inputs": [{"name": "x", "dtype": "int8"}],
        "gpu": {"sm": "90"},
    }
    assert because(before, after) == (
        "precision fp32 -> fp16, source changed, inputs.x.dtype float32 -> int8, gpu.sm none -> 90"
    )
    assert because(before, before) == ""
    assert because(None, after) == "no earlier build"


def test_long_lists_are_reported_by_their_differences() -> None:
    """Such lists often start with the same elements, which do not show the change."""
    names = [f"encoder.layers.{number}.attention/aten::linear_0" for number in range(9)]
    before, after = {"keep_fp32": names}, {"keep_fp32": [*names[:-1], "head/*"]}
    assert because(before, after) == f"keep_fp32 +head/* -{names[-1]}"
    assert because(before, {"keep_fp32": names[::-1]}) == "keep_fp32 reordered"
    assert (
        because({"keep_fp32": ["a"]}, {"keep_fp32": ["b"]})
        == 'keep_fp32 ["a"] -> ["b"]'
    )
    assert (
        because({"data": ["a" * 64]}, {"data": ["b" * 64, "goldens"]}) == "data changed"
    )
    assert (
        because({}, {"data": ["b" * 64, "goldens"]})
        == "data none -> [bbbbbbbbbbbb, goldens]"
    )


def test_range_is_reported_once() -> None:
    """The range of an input's axis spans all profiles, so only the changed profile is reported."""

    def parts(*profiles: list[int]) -> dict[str, object]:
        dims = {
            "batch": [
                profiles[0][0],
                profiles[0][1],
                max(profile[2] for profile in profiles),
            ]
        }
        inputs = [{"name": name, "dims": dims} for name in ("ids", "mask")]
        return {
            "inputs": inputs,
            "profiles": [{"batch": profile} for profile in profiles],
        }

    before = parts([1, 2, 4], [5, 6, 8])
    assert (
        because(before, parts([1, 2, 4], [5, 6, 9]))
        == "profiles.1.batch [5, 6, 8] -> [5, 6, 9]"
    )
    assert because(before, parts([1, 2, 4])) == "profiles.1.batch [5, 6, 8] -> none"
    alone = {"inputs": [{"name": "x", "dims": {"batch": [1, 2, 4]}}]}
    assert (
        because({}, alone)
        == "inputs.x.name none -> x, inputs.x.dims.batch none -> [1, 2, 4]"
    )


def forged(store: Store, **changes: Any) -> str:
    """Changes a record without a new signature, and returns its path."""
    store.put(KEY, PARTS, PLAN)
    path = next(name for name in files(store) if name.endswith("json"))
    record = {**json.loads(store.fs.cat_file(path)), **changes}
    store.fs.pipe_file(path, json.dumps(record).encode())
    return path


@pytest.mark.parametrize(
    "changes",
    [
        {"facts": {"flavor": "tensorrt"}},
        {"signature": "0" * 64},
        {"signature": None},
        {"signature": "ä"},
        {"parts": []},
    ],
)
def test_forged_record_is_ignored_with_warning(
    store: Store, conversion: Any, changes: dict[str, Any]
) -> None:
    forged(store, **changes)
    assert store.get(KEY) is None
    assert (
        len(store.warnings) == 1
        and "is not signed with this builder's key" in store.warnings[0]
    )


@pytest.mark.parametrize(
    "record", [{}, {"key": KEY}, {"key": KEY, "sha256": 3, "parts": {}, "facts": {}}]
)
def test_malformed_record_is_rejected_even_if_signed(
    store: Store, record: dict[str, Any]
) -> None:
    path = forged(store)
    store.write_record(path, record)
    assert (
        store.get(KEY) is None and "is not the record of this key" in store.warnings[0]
    )


def test_plans_report_warning_of_forged_record(tmp_path: Path, conversion: Any) -> None:
    store = Store(str(tmp_path))
    Plans(store).build(conversion, BuildOptions(), lambda: PLAN)
    path = next(name for name in files(store) if name.endswith("json"))
    store.fs.pipe_file(
        path, store.fs.cat_file(path).replace(b'"signature":"', b'"signature":"0')
    )
    plans = Plans(store)
    plan = plans.build(conversion, BuildOptions(), lambda: Plan(b"built here", {}))
    assert plan.data == b"built here" and not plans.records["model"].found
    assert len(plans.warnings) == 1 and "is not signed" in plans.warnings[0]
    assert (
        Plans(store).build(conversion, BuildOptions(), lambda: PLAN).data
        == b"built here"
    )


def test_plan_signed_with_another_key_is_ignored(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(KEY, PARTS, PLAN)
    monkeypatch.setenv("TRT_BUILD_STORE_KEY", "the key of others")
    assert store.get(KEY) is None and store.warnings


@pytest.mark.parametrize("which", ["plan", "json"])
def test_folder_instead_of_a_file_is_replaced(tmp_path: Path, which: str) -> None:
    store = Store(str(tmp_path))
    store.put(KEY, PARTS, PLAN)
    path = Path(next(name for name in files(store) if name.endswith(which)))
    path.unlink()
    (path / "inside").mkdir(parents=True)
    assert store.get(KEY) is None and store.warnings
    store.put(KEY, PARTS, PLAN)
    assert path.is_file() and store.get(KEY) is not None


def test_signing_key_is_created_once_and_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRT_BUILD_STORE_KEY")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    first = signing.key()
    file = tmp_path / "trt-build" / "store.key"
    assert (signing.key(), file.stat().st_mode & 0o777) == (first, 0o600)
    assert len(first) == 64 and [path.name for path in file.parent.iterdir()] == [
        "store.key"
    ]
    file.chmod(0o644)
    with pytest.raises(PermissionError, match="chmod 600"):
        signing.key()
    monkeypatch.setenv("TRT_BUILD_STORE_KEY", "short")
    with pytest.raises(ValueError, match="fewer than 16"):
        signing.key()
