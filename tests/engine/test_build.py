"""A build reports its progress, can be stopped, and does not start without enough memory."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import builder
from builder.engine import (
    BuildOptions,
    build,
    caches,
    config,
    flavor,
    gpu,
    memory,
    progress,
)
from builder.engine.build import _build_lock as build_lock
from builder.engine.build import _fix as fix_of
from builder.engine.build import _reason as reason
from builder.engine.flavor import trt
from builder.errors import EngineError, EnvironmentProblem
from tests.store.conftest import small


@pytest.fixture(autouse=True)
def not_cancelled() -> Iterator[None]:
    yield
    progress.CANCEL.clear()


needs_monitor = pytest.mark.skipif(
    not hasattr(trt, "IProgressMonitor"), reason="8.6 has no progress monitor"
)


@needs_monitor
def test_build_reports_all_steps_of_all_phases() -> None:
    messages: list[tuple[str, int, int]] = []
    build(small(), report=lambda *words: messages.append(words))
    assert len({phase for phase, _, _ in messages}) > 3
    assert all(1 <= step <= steps for _, step, steps in messages if steps)


@needs_monitor
@pytest.mark.parametrize("after", [0, 20])
def test_canceled_build_ends_at_the_next_step(after: int) -> None:
    messages: list[str] = []

    def report(phase: str, step: int, steps: int) -> None:
        messages.append(phase)
        if len(messages) > after:
            progress.CANCEL.set()

    with pytest.raises(progress.BuildCanceled):
        build(small(), report=report)
    assert after < len(messages) < after + 5
    assert issubclass(progress.BuildCanceled, KeyboardInterrupt)
    assert threading.active_count() < 50
    progress.CANCEL.clear()
    assert build(small()).data


@needs_monitor
@pytest.mark.parametrize("number", progress.SIGNALS)
def test_signal_stops_a_build_without_output_from_callbacks(
    capfd: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    """An exception in a callback is printed with a traceback and the build goes on. So the monitor
    stops TensorRT, and the handler raises after TensorRT has returned.
    """
    messages: list[str] = []

    class Stopped(KeyboardInterrupt):
        pass

    def stop(number: int, frame: object) -> None:
        raise Stopped

    def report(phase: str, step: int, steps: int) -> None:
        messages.append(phase)
        signal.raise_signal(number)

    before = signal.signal(number, stop)
    try:
        with pytest.raises(Stopped):
            build(small(), report=report)
        assert len(messages) < 5
        assert "".join(capfd.readouterr()) == ""
        with pytest.raises(Stopped):
            signal.raise_signal(number)
    finally:
        signal.signal(number, before)
    assert build(small()).data


def test_failed_build_is_reported_once(capfd: pytest.CaptureFixture[str]) -> None:
    """Only in the error of trt-build, not in messages of Polygraphy."""
    conversion = small()
    conversion.network.unmark_output(conversion.network.get_output(0))
    with pytest.raises(EngineError, match="could not build the network"):
        build(conversion)
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.parametrize(
    ("words", "options", "messages"),
    [
        (
            "no tactics within workspace limit",
            {"workspace_bytes": 1},
            "more memory than workspace 1 bytes",
        ),
        ("insufficient workspace", {}, "reduce the maximum sizes"),
        (
            "cfg.tacticMaxShmemSize",
            {"memory_pools": {"tactic_shared_memory": 2}},
            "than tactic_shared_memory 2 bytes",
        ),
        ("no implementation for node", {"workspace_bytes": 1}, "`trt-build inspect`"),
        (
            "Could not find any implementation for node {ForeignNode[a...b]}.",
            {},
            "one size (min = opt = max)",
        ),
    ],
)
def test_exceeded_memory_limit_is_named_in_the_fix(
    words: str, options: Any, messages: str
) -> None:
    assert messages in fix_of(words, BuildOptions(**options))


@pytest.mark.skipif(flavor.resolve() != "tensorrt-rtx", reason="its words")
def test_too_small_workspace_is_reported() -> None:
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 64, 7), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3)
    ).eval()
    conversion = builder.convert(
        torch.jit.script(module), [builder.TensorSpec("float32", (2, 3, 64, 64))]
    )
    with pytest.raises(EngineError, match="workspace limit") as refused:
        build(conversion, BuildOptions(workspace_bytes=1))
    assert "--workspace" in str(refused.value.fix)


def test_error_omits_timing_cache_messages_of_8_6(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages = [
        (
            "1: [myelinCache.h::deserializeFromBuffer::52] Error Code 1: Myelin (Myelin error from"
            " unknown graph)"
        ),
        "4: The timing cache will not be used!",
        "10: Could not find any implementation for node pool.",
    ]
    monkeypatch.setattr(sys.modules["builder.engine.build"], "MESSAGES", messages)
    assert (
        reason(RuntimeError("no"))
        == f"TensorRT could not build the network: {messages[2]}"
    )
    monkeypatch.setattr(sys.modules["builder.engine.build"], "MESSAGES", messages[:2])
    assert reason(RuntimeError("no")) == "TensorRT could not build the network: no"


def test_build_without_enough_memory_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "host_available", lambda: 100)
    with pytest.raises(
        EngineError, match="at least 0 MiB of host memory, and 0 MiB are free"
    ):
        build(small())


def test_memory_includes_weights_and_largest_inputs() -> None:
    conversion = small()
    assert memory.weights_bytes(conversion.lowered.graph) >= 4 * (4 * 40 + 40)
    assert memory.endpoint_bytes(conversion) == 8 * 4 * 4


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        ({}, 4096 * 1024),
        (
            {"memory.max": "max\n", "memory.current": "5\n", "memory.stat": "file 1\n"},
            4096 * 1024,
        ),
        (
            {
                "memory.max": "3000000\n",
                "memory.current": "2000000\n",
                "memory.stat": "anon 1\nfile 500000\n",
            },
            1_500_000,
        ),
        (  # version 2, a slice within what is mounted; its parent has less to give
            {
                "/proc/self/cgroup": "0::/user.slice/job.scope\n",
                "user.slice/job.scope/memory.max": "900\n",
                "user.slice/job.scope/memory.current": "100\n",
                "user.slice/job.scope/memory.stat": "file 0\n",
                "user.slice/memory.max": "700\n",
                "user.slice/memory.current": "100\n",
                "user.slice/memory.stat": "file 50\n",
            },
            650,
        ),
        (  # version 1 in a container, where the group's path on the host is not visible
            {
                "/proc/self/cgroup": "5:devices:/\n4:memory:/docker/1f\n",
                "memory/memory.limit_in_bytes": "3000000\n",
                "memory/memory.usage_in_bytes": "2000000\n",
                "memory/memory.stat": "cache 7\ntotal_cache 500000\n",
            },
            1_500_000,
        ),
    ],
)
def test_free_host_memory_of_machine_and_container(
    tmp_path: Path, cgroup: dict[str, str], expected: int
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text(
        "MemTotal: 9000 kB\nMemAvailable:    4096 kB\n"
    )
    for name, text in cgroup.items():
        path = (
            tmp_path / name[1:]
            if name.startswith("/")
            else tmp_path / "sys" / "fs" / "cgroup" / name
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert memory.host_available(tmp_path) == expected
    assert memory.host_available(tmp_path / "nothing") is None


def test_cache_names_have_gpu_cuda_and_tensorrt_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(caches.CACHE_VARIABLE, str(tmp_path))
    here = {"name": "NVIDIA H100 80GB", "architecture": "sm_90", "cuda": "13.0"}
    monkeypatch.setattr(gpu, "identity", lambda: here)
    path = caches.timing_cache()
    version = flavor.installed_version(flavor.chosen())
    assert (
        path
        == tmp_path / "timing" / f"nvidia-h100-80gb-sm-90-13.0-tensorrt-{version}.cache"
    )
    here["cuda"] = "13.1"
    assert caches.timing_cache() != path


@pytest.mark.parametrize("closed", ["file", "folder"])
def test_unwritable_cache_folder_is_an_environment_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    """The lock for timing tactics and the timing cache need the folder. Root may write anywhere, so
    the permission check of the system is replaced.
    """
    folder = tmp_path / "cache"
    monkeypatch.setenv(caches.CACHE_VARIABLE, str(folder))
    monkeypatch.setattr(flavor, "name", lambda: "tensorrt")
    if closed == "file":
        folder.write_text("")
    else:
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    for path in (caches.gpu_lock(), caches.timing_cache()):
        with pytest.raises(EnvironmentProblem, match=str(folder)) as caught:
            caches.with_folder(path)
        assert caches.CACHE_VARIABLE in str(caught.value.fix)
    with pytest.raises(EnvironmentProblem, match=str(folder)):
        config.timing_cache(BuildOptions())
    with pytest.raises(EnvironmentProblem, match=str(folder)), build_lock():
        pass


def test_cache_folder_follows_environment_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(caches.CACHE_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert caches.cache_folder() == tmp_path / "trt-build"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert caches.cache_folder() == tmp_path / "home" / ".cache" / "trt-build"


@pytest.mark.skipif(gpu.driver() is not None, reason="there is a GPU here")
def test_gpu_facts_are_none_without_a_gpu() -> None:
    assert gpu.devices() == []
    assert (
        gpu.current()
        is gpu.identity()
        is gpu.driver_version()
        is gpu.free_memory()
        is None
    )
    assert not flavor.has_gpu()
