"""Confines the process of a served model to the rights that its requests need."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from .kernel import (
    GPU_DEVICE,
    all_but,
    give_up_privileges,
    landlock_version,
    refuse_calls,
    restrict_files,
)

STUB = "triton_python_backend_stub"
"""The program of Triton's Python backend. Any other process that loads this module is not confined.
"""
VARIABLE = "TRT_BUILD_UNCONFINED"
"""The environment variable that turns the confinement of served models off."""
SHARED_MEMORY = Path("/dev/shm")
TRUNCATES = 3
"""The first version of Landlock that can forbid to truncate files."""


def confine(folder: Path) -> tuple[str, ...]:
    """Forbid this thread, and all that it starts, to write files and to open sockets. Of the model
    repository it may read only `folder`, and of home and temporary folders only this Python.
    Returns the mechanisms in effect. Nothing is done with a GPU: CUDA shares memory between
    tritonserver and this process, and the rights that it needs are not known.
    """
    if not is_stub() or os.environ.get(VARIABLE) or has_gpu():
        return ()
    if not give_up_privileges():
        return ()
    mechanisms = []
    hidden = list(_hidden(folder))
    always_readable = [
        path for path in (folder, *_python()) if not _is_hidden(path, hidden)
    ]
    mapped = list(_mapped_files())
    memory = [path for path in mapped if SHARED_MEMORY in path.parents]
    libraries = {
        path.parent if not _is_hidden(path.parent, hidden) else path for path in mapped
    }
    beside = all_but(hidden)
    readable = None
    if beside:
        readable = [*beside, *always_readable, *libraries]
    if landlock_version() >= TRUNCATES and restrict_files(
        memory, readable, network=False
    ):
        mechanisms.append("landlock")
    if refuse_calls(network=False, local=False):
        mechanisms.append("seccomp")
    return tuple(mechanisms)


def has_gpu() -> bool:
    """Whether this host has a GPU."""
    return Path(GPU_DEVICE).exists()


def is_stub() -> bool:
    """Whether this process is the stub of Triton's Python backend."""
    try:
        return Path(os.readlink("/proc/self/exe")).name.startswith(STUB)
    except OSError:
        return False


def _hidden(folder: Path) -> Iterator[Path]:
    """The folders that cannot be read, outermost ones only."""
    folders = {folder.resolve().parent, SHARED_MEMORY, Path("/tmp"), Path("/var/tmp")}
    home = os.path.expanduser("~")
    if os.path.isabs(home):
        folders.add(Path(home))
    folders = {path.resolve() for path in folders if path.is_dir()} - {Path("/")}
    for path in folders:
        if not folders & set(path.parents):
            yield path


def _is_hidden(path: Path, hidden: Sequence[Path]) -> bool:
    """Whether the path is a hidden folder or below one."""
    return any(
        hidden_folder == path or path in hidden_folder.parents
        for hidden_folder in hidden
    )


def _python() -> Iterator[Path]:
    """The folders of this interpreter and its packages."""
    for name in {sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path}:
        if os.path.isabs(name) and os.path.exists(name):
            yield Path(name).resolve()


def _mapped_files() -> Iterator[Path]:
    """The files that this process has mapped: its libraries, and memory that it shares with
    tritonserver.
    """
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        names = {line.split(maxsplit=5)[5].strip() for line in lines if "/" in line}
    for name in names:
        if name.startswith("/") and os.path.isfile(name):
            yield Path(name)
