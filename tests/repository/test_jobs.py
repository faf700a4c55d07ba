"""The fork server imports what workers need, so that no worker repeats it."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from builder import build_repository, processes
from builder.engine import BuildOptions, flavor
from builder.pipeline import Order
from builder.repository import jobs
from tests.cli.conftest import Small, save

LIBRARIES = ("builder", "tensorrt_rtx", "tensorrt", "polygraphy", "torch", "fsspec")


def modules_imported_by_a_build(model: Path, out: Path, report: Any) -> set[str]:
    """Build in this process, and return the modules that this imports, except those of the caller's
    side of a build.
    """
    before = set(sys.modules)
    (result,) = build_repository(model, out, isolate=False)
    assert result.error is None
    return {
        name
        for name in set(sys.modules) - before
        if name.partition(".")[0] in LIBRARIES
        and not name.startswith("builder.repository.")
    }


@pytest.mark.parametrize(
    ("installed", "has_gpu", "loads"),
    [
        (["tensorrt-rtx"], False, True),
        (["tensorrt-rtx"], True, False),
        (["tensorrt", "tensorrt-rtx"], False, False),
        (["tensorrt"], True, False),
        ([], False, False),
    ],
)
def test_tensorrt_is_loaded_before_the_fork_only_without_a_choice_and_a_gpu(
    installed: list[str],
    has_gpu: bool,
    loads: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flavor, "installed", lambda: installed)
    monkeypatch.setattr(flavor, "has_gpu", lambda: has_gpu)
    assert ("builder.engine.preloaded" in jobs.modules([])) == loads


@pytest.mark.parametrize(
    ("url", "local"), [("{}", True), ("file://{}", True), ("s3://bucket{}", False)]
)
def test_worker_may_write_to_a_local_store_and_the_timing_cache(
    tmp_path: Path, url: str, local: bool
) -> None:
    store = url.format(tmp_path / "a")
    options = BuildOptions(timing_cache=tmp_path / "b" / "timing.cache")
    sandbox = jobs.sandbox(Order(Mock(), tmp_path, store=store, options=options))
    assert (tmp_path / "a" in sandbox.writable) == local
    assert tmp_path / "b" in sandbox.writable
    assert sandbox.network == (not local)


def test_build_in_a_worker_imports_nothing_more(tmp_path: Path) -> None:
    save(Small(), tmp_path / "small.pt")
    target = partial(
        modules_imported_by_a_build, tmp_path / "small.pt", tmp_path / "out"
    )
    modules = jobs.modules([tmp_path / "small.pt"])
    (imported,) = processes.run([processes.Task(target)], modules=modules)
    if flavor.is_only_rtx():
        assert imported == set()
    else:  # each worker loads its flavor, after its GPU is chosen
        packages = {name.partition(".")[0] for name in imported}
        assert packages <= {"tensorrt_rtx", "tensorrt", "polygraphy"}
