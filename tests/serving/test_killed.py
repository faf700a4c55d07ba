"""A killed `serve` leaves no files or processes, and a dead model process is reported."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builder.errors import ServerError
from builder.serving import FREE_PORTS, scratch, serve
from builder.serving.stubs import Stubs

SERVE = """
import sys, time
from pathlib import Path
from builder.serving import FREE_PORTS, serve
with serve(Path(sys.argv[1]), **FREE_PORTS) as server:
    print(server.process.pid, server.guardian.pid, server.scratch, flush=True)
    time.sleep(600)
"""


def becomes_true(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def is_running(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            not in "ZX"
        )
    except OSError:
        return False


def remaining_files(folder: Path) -> list[Path]:
    return [
        *folder.parent.glob(f"{folder.name}*"),
        *Path("/dev/shm").glob(f"{folder.name}*"),
    ]


@contextlib.contextmanager
def started(repository: Path) -> Iterator[tuple[subprocess.Popen[str], int, int, Path]]:
    """Start a process that serves. Yields it, the ids of server and guardian, and the folder."""
    words = [sys.executable, "-c", SERVE, str(repository)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server, guardian, folder = process.stdout.readline().split()
        try:
            yield process, int(server), int(guardian), Path(folder)
        finally:
            process.kill()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(server), signal.SIGKILL)


@pytest.mark.live
@pytest.mark.slow
def test_killed_serve_leaves_no_server_memory_or_folder(valid_repository: Path) -> None:
    with started(valid_repository) as (process, server, guardian, folder):
        assert is_running(server) and len(remaining_files(folder)) > 1
        process.kill()
        assert becomes_true(
            lambda: not is_running(server) and not remaining_files(folder)
        )
        assert becomes_true(lambda: not is_running(guardian))


@pytest.mark.live
@pytest.mark.slow
def test_next_start_cleans_up_if_the_guardian_was_killed(
    valid_repository: Path,
) -> None:
    with started(valid_repository) as (process, server, guardian, folder):
        scratch.remove_stale()
        assert is_running(server) and remaining_files(folder), (
            "a running server is not removed"
        )
        os.kill(guardian, signal.SIGKILL)
        process.kill()
        process.wait()
        assert is_running(server) and remaining_files(folder)
        scratch.remove_stale()
        assert becomes_true(lambda: not is_running(server)) and not remaining_files(
            folder
        )


@pytest.mark.live
@pytest.mark.slow
def test_serving_ends_with_the_name_of_the_dead_model(valid_repository: Path) -> None:
    with serve(valid_repository, **FREE_PORTS) as server:
        stubs = Stubs(server.process.pid)
        assert stubs.dead() == []
        (stub,) = stubs.models
        threading.Timer(1.5, os.kill, (stub, signal.SIGKILL)).start()
        with pytest.raises(
            ServerError, match="the process of model 'scorer' ended"
        ) as died:
            server.block()
        assert died.value.exit_code == 4
    assert not is_running(server.process.pid)


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.timeout(60)
def test_process_that_died_before_block_is_reported(valid_repository: Path) -> None:
    """The process dies after the server is ready and before block()."""
    with serve(valid_repository, **FREE_PORTS) as server:
        stubs = Stubs(server.process.pid)
        assert stubs.dead() == []
        (stub,) = stubs.models
        os.kill(stub, signal.SIGKILL)
        assert becomes_true(lambda: not is_running(stub))
        with pytest.raises(ServerError, match="the process of model 'scorer' ended"):
            server.block()


def test_only_folders_of_ended_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "_plain_folder", lambda: tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    stale = tmp_path / f"trt-build-{ended.pid}-0123abcd"
    other = tmp_path / "trt-build-notes"
    for folder in (stale, other):
        folder.mkdir()
    own, handle = scratch.make()
    elsewhere = own.rename(
        tmp_path / f"trt-build-{ended.pid}-4567abcd"
    )  # with its lock held
    scratch.remove_stale()
    assert {path.name for path in tmp_path.iterdir()} == {other.name, elsewhere.name}
    os.close(handle)
    scratch.remove_stale()
    assert {path.name for path in tmp_path.iterdir()} == {other.name}
