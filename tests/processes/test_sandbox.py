"""A confined worker writes in its folders only and reaches no network."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from builder import processes
from builder.errors import EnvironmentProblem, UsageError
from builder.processes import sandbox

pytestmark = pytest.mark.skipif(
    bool(processes.missing()), reason="this machine has no Landlock or seccomp"
)

HERE = "tests.processes.test_sandbox"
TEXT = "content that must stay"


def confined(name: str, *arguments: Any, **allowed: Any) -> Any:
    chosen = None if name == "sockets_with_gpu" else processes.Sandbox(**allowed)
    (answer,) = processes.run([processes.Task(f"{HERE}:{name}", arguments, sandbox=chosen)])
    return answer


def outcomes(folder: str, report: Any) -> dict[str, str]:
    """How each way to change `folder`, which holds a file and a folder, ends."""
    path = Path(folder)
    ways = {
        "overwrite": lambda: (path / "file").write_text("x"),
        "truncate": lambda: os.truncate(path / "file", 0),
        "create": lambda: (path / "new").write_text("x"),
        "make a folder": lambda: (path / "new folder").mkdir(),
        "rename": lambda: (path / "file").rename(path / "folder" / "file"),
        "link": lambda: (path / "link").symlink_to("file"),
        "remove": lambda: (path / "other").unlink(),
        "a child's write": lambda: subprocess.run(
            [sys.executable, "-c", f"open({str(path / 'child')!r}, 'w')"],
            check=True,
            stderr=subprocess.DEVNULL,
        ),
    }
    return {way: _ends(action) for way, action in ways.items()}


def _ends(action: Any) -> str:
    try:
        action()
    except (OSError, subprocess.CalledProcessError) as error:
        return type(error).__name__
    return "done"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "given"
    (path / "folder").mkdir(parents=True)
    (path / "file").write_text(TEXT)
    (path / "other").write_text(TEXT)
    return path


def test_nothing_outside_the_writable_folders_changes(folder: Path, tmp_path: Path) -> None:
    found = confined("outcomes", str(folder), writable=(tmp_path / "elsewhere",))
    assert set(found.values()) == {"PermissionError", "CalledProcessError"}
    assert (folder / "file").read_text() == TEXT
    assert sorted(path.name for path in folder.iterdir()) == ["file", "folder", "other"]


def test_a_writable_folder_is_written(folder: Path) -> None:
    assert set(confined("outcomes", str(folder), writable=(folder,)).values()) == {"done"}


def sockets(report: Any) -> list[str]:
    kinds = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK)
    return [_ends(lambda kind=kind: socket.socket(kind, socket.SOCK_DGRAM)) for kind in kinds]


def test_there_is_no_network() -> None:
    assert confined("sockets") == ["PermissionError"] * 4


def test_with_a_gpu_local_sockets_can_be_made_and_no_others() -> None:
    assert confined("sockets_with_gpu", sys.executable) == [
        "PermissionError",
        "PermissionError",
        "done",
        "PermissionError",
    ]
    if not Path(sandbox.GPU_DEVICE).exists():
        assert confined("sockets", gpu=True) == ["PermissionError"] * 4


def sockets_with_gpu(device: str, report: Any) -> list[str]:
    sandbox.GPU_DEVICE = device  # a file that exists stands for the GPU
    assert sandbox.Sandbox(gpu=True).apply() == ("landlock", "seccomp")
    return sockets(report)


def test_a_store_on_another_machine_is_reached() -> None:
    assert confined("sockets", network=True) == ["done"] * 4


def temporary(report: Any) -> tuple[str, str]:
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(b"x")
    os.makedirs(os.path.join(tempfile.gettempdir(), "left", "behind"))
    return file.name, tempfile.gettempdir()


def test_the_temporary_folder_is_private_and_removed_at_the_end() -> None:
    (file, folder), (_, other) = confined("temporary"), confined("temporary")
    assert Path(file).parent == Path(folder)
    assert folder != other
    assert not Path(folder).exists()
    assert not Path(other).exists()


def nested(folder: str, report: Any) -> Any:
    (answer,) = processes.run([processes.Task(f"{HERE}:outcomes", (folder,))])
    return answer


def test_a_workers_own_children_are_confined_too(folder: Path) -> None:
    assert "done" not in confined("nested", str(folder)).values()


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sandbox.available() == {"landlock": True, "seccomp": True}
    monkeypatch.setattr(sandbox, "landlock_version", lambda: 0)
    assert processes.missing() == ("landlock",)


def test_to_require_a_sandbox_refuses_to_go_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    processes.require()
    with pytest.raises(UsageError, match="without isolation"):
        processes.require(isolate=False)
    monkeypatch.setattr(sandbox, "landlock_version", lambda: 0)
    with pytest.raises(EnvironmentProblem, match="landlock is missing"):
        processes.require()
