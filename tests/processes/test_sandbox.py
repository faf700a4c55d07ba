"""A confined worker writes only in its folders and has no network."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from builder import processes
from builder.errors import EnvironmentProblem, UsageError
from builder.processes import fork_server, sandbox

pytestmark = pytest.mark.skipif(
    bool(processes.missing()), reason="this machine has no Landlock or seccomp"
)

TEXT = "content that must stay"


def confined(name: str, *arguments: Any, **allowed: Any) -> Any:
    chosen = None if name == "sockets_with_gpu" else processes.Sandbox(**allowed)
    (result,) = processes.run(
        [processes.Task(partial(globals()[name], *arguments), sandbox=chosen)]
    )
    return result


def outcomes(folder: str, report: Any) -> dict[str, str]:
    """The outcome of each way to change `folder`, which has a file and a folder."""
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


def test_folders_outside_writable_are_unchanged(folder: Path, tmp_path: Path) -> None:
    outcomes = confined("outcomes", str(folder), writable=(tmp_path / "elsewhere",))
    assert set(outcomes.values()) == {"PermissionError", "CalledProcessError"}
    assert (folder / "file").read_text() == TEXT
    assert sorted(path.name for path in folder.iterdir()) == ["file", "folder", "other"]


def test_writable_folder_can_be_written(folder: Path) -> None:
    assert set(confined("outcomes", str(folder), writable=(folder,)).values()) == {
        "done"
    }


def sockets(report: Any) -> list[str]:
    kinds = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK)
    return [
        _ends(lambda kind=kind: socket.socket(kind, socket.SOCK_DGRAM))
        for kind in kinds
    ]


def test_network_is_blocked() -> None:
    assert confined("sockets") == ["PermissionError"] * 4


def test_gpu_sandbox_allows_only_local_sockets() -> None:
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


def test_network_option_allows_sockets() -> None:
    assert confined("sockets", network=True) == ["done"] * 4


def temporary(report: Any) -> tuple[str, str]:
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(b"x")
    os.makedirs(os.path.join(tempfile.gettempdir(), "left", "behind"))
    return file.name, tempfile.gettempdir()


def test_temporary_folder_is_private_and_removed() -> None:
    (file, folder), (_, other) = confined("temporary"), confined("temporary")
    assert Path(file).parent == Path(folder)
    assert folder != other
    assert not Path(folder).exists()
    assert not Path(other).exists()


def nested(folder: str, report: Any) -> Any:
    (result,) = processes.run([processes.Task(partial(outcomes, folder))])
    return result


def test_children_of_a_worker_are_confined(folder: Path) -> None:
    assert "done" not in confined("nested", str(folder)).values()


def test_missing_features_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sandbox.available() == {"landlock": True, "seccomp": True}
    monkeypatch.setattr(sandbox, "landlock_version", lambda: 0)
    assert processes.missing() == ("landlock",)


def test_require_refuses_to_run_without_a_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes.require()
    with pytest.raises(UsageError, match="confined only in separate processes"):
        processes.require(isolate=False)
    monkeypatch.setattr(sandbox, "landlock_version", lambda: 0)
    with pytest.raises(EnvironmentProblem, match="landlock is missing"):
        processes.require()


def reads(files: list[str], report: Any) -> list[str]:
    return [_ends(lambda file=file: Path(file).read_text()) for file in files]


def test_only_secrets_are_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    secret = tmp_path / "config" / "trt-build" / "store.key"
    secret.parent.mkdir(parents=True)
    beside = tmp_path / "config" / "other"
    link = tmp_path / "link"
    link.symlink_to(secret.parent)
    for file in (secret, beside):
        file.write_text(TEXT)
    files = [
        str(secret),
        str(link / "store.key"),
        str(beside),
        "/proc/self/status",
        __file__,
    ]
    assert confined("reads", files) == ["PermissionError"] * 2 + ["done"] * 3
    with_folder = confined(
        "written_then_read", str(tmp_path), writable=(tmp_path / "config",)
    )
    assert with_folder == ["PermissionError"]


def written_then_read(folder: str, report: Any) -> list[str]:
    """A worker with a writable folder around the secret cannot read the secret."""
    return reads([f"{folder}/config/trt-build/store.key"], report)


def secrets_of_the_environment(report: Any) -> list[str]:
    keys = [os.environ.get("TRT_BUILD_STORE_KEY", "")]
    pids = ["self", str(os.getppid())]
    for pid in pids:
        try:
            keys.append(Path(f"/proc/{pid}/environ").read_text())
        except PermissionError:
            keys.append("")
    return keys


def test_worker_environment_has_no_store_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRT_BUILD_STORE_KEY", "a key of many characters")
    fork_server.close()  # the next fork server is started with the key in this environment
    assert not any(
        "many characters" in text for text in confined("secrets_of_the_environment")
    )


def call_handler(report: Any) -> tuple[int, str]:
    refused = ""
    try:
        processes.call_parent("sum", 1, "x")
    except TypeError as error:
        refused = str(error)
    return processes.call_parent("sum", 1, 2), refused


def test_worker_calls_handlers_of_its_caller() -> None:
    task = processes.Task(
        call_handler, handlers={"sum": lambda one, other: one + other}
    )
    (result,) = processes.run([task])
    assert result[0] == 3
    assert "unsupported operand" in result[1]
    assert not processes.can_ask("sum")
