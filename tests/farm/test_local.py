"""A farm on only this machine, as a command; Ctrl-C ends it with all of its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Small, save

pytest.importorskip("ray")
pytestmark = pytest.mark.slow


def processes_with_cache(folder: str) -> list[int]:
    """The processes with this cache folder in their environment, except the test itself."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if f"TRT_BUILD_CACHE={folder}\0".encode() in file.read_bytes():
                found.append(int(file.parent.name))
    return [pid for pid in found if pid != os.getpid()]


def test_ctrl_c_publishes_nothing_and_ends_all_processes(tmp_path: Path) -> None:
    save(Small(), tmp_path / "small.pt")
    out = tmp_path / "out"
    words = ["repo", str(tmp_path / "small.pt"), "--out", str(out), "--farm", "local"]
    command = subprocess.Popen(
        [*PROGRAM, *words, "--store", str(tmp_path / "store")],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
        start_new_session=True,
    )
    assert command.stderr is not None
    started = next((line for line in command.stderr if ": load" in line), None)
    assert started == "small@local: load\n"
    cache = os.environ["TRT_BUILD_CACHE"]
    assert len(processes_with_cache(cache)) > 1
    os.killpg(command.pid, signal.SIGINT)
    output = command.stderr.read()
    assert command.wait() == 130, output
    assert "no partly written files remain" in output
    deadline = time.monotonic() + 100
    while (
        processes_with_cache(cache) and time.monotonic() < deadline
    ):  # builds stop when their input ends
        time.sleep(0.2)
    assert processes_with_cache(cache) == []
    assert not out.exists()
