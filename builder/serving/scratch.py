"""The folder for a server's own files, and the removal of remains of killed servers.

The process that starts a server holds a lock on the server's folder. If the lock is free, the
process has ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from builder.serving import guardian

PLAIN = re.compile(r"[A-Za-z0-9_./=@%+,:-]*")
PREFIX = "--backend-config=python,shm-region-prefix-name="
"""Prefix of the server's argument with the folder's name."""
_NAME = re.compile(r"trt-build-(?P<pid>\d+)-[0-9a-f]{8}")


def make() -> tuple[Path, int]:
    """Create a folder and return it with an open handle that holds its lock.

    Its unique name is also the prefix of the server's shared memory, so that only the memory of
    this server is removed. Raises OSError.
    """
    while True:
        folder = Path(
            _plain_folder(), f"trt-build-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        )
        folder.mkdir()
        handle = os.open(folder, os.O_RDONLY)
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        if folder.exists():
            return folder, handle
        os.close(handle)


def remove_stale() -> None:
    """Remove the processes, shared memory and folders of this user's servers whose parent was
    killed.

    The guardian of such a server was also killed, or has not yet run.
    """
    for folder in _plain_folder().glob("trt-build-*"):
        match = _NAME.fullmatch(folder.name)
        if match is None or Path("/proc", match["pid"]).exists():
            continue
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid() and not folder.is_symlink():
                _remove(folder)


def _remove(folder: Path) -> None:
    """Remove the folder and the remains of its server, unless its lock is held.

    A process in another container may have the same number. Raises OSError if the lock is held.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for server in _servers(folder.name):
            guardian.end(server)
        guardian.clean(folder)
    finally:
        os.close(handle)


def _servers(name: str) -> Iterator[int]:
    """The servers that were started with this folder. Each leads a process group."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = process.joinpath("cmdline").read_bytes()
            if f"{PREFIX}{name}".encode() in command.split(b"\0"):
                yield int(process.name)


def _plain_folder() -> Path:
    """A temporary folder whose path has no special characters."""
    folder = Path(tempfile.gettempdir())
    if PLAIN.fullmatch(str(folder)):
        return folder
    return Path("/tmp")
