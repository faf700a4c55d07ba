"""Confines a worker: files can be written in named folders only, and there is no network."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from builder.errors import EnvironmentProblem, UsageError
from builder.templates import (
    GPU_DEVICE,
    all_but,
    give_up_privileges,
    landlock_version,
    refuse_calls,
    restrict_files,
    seccomp_available,
)

SECRET_VARIABLES = ("TRT_BUILD_STORE_KEY",)
"""Environment variables that are removed from workers."""


def secrets_folder() -> Path:
    """The folder of files that no confined worker may read: `trt-build` in the user's configuration
    folder (XDG_CONFIG_HOME, else ~/.config).
    """
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "trt-build"


@dataclass(frozen=True)
class Sandbox:
    """The permissions of a worker.

    `writable`: folders and existing files that it may write to. GPU devices and /dev/null are
    always allowed. Without any entry nothing can be written. Sockets can only be created with
    `network`. `gpu` adds what CUDA needs on a machine with a GPU: local sockets, and names for its
    own threads.
    """

    writable: tuple[Path, ...] = ()
    network: bool = False
    gpu: bool = False
    hidden: tuple[Path, ...] = field(default_factory=lambda: (secrets_folder(),))
    """Files and folders that cannot be read, if Landlock is available."""

    def apply(self) -> tuple[str, ...]:
        """Confine this thread and everything that it starts. Returns the names of the active
        mechanisms.

        Mechanisms that this machine lacks are left out; missing() lists them.
        """
        if not give_up_privileges():
            return ()
        mechanisms = []
        gpu = self.gpu and Path(GPU_DEVICE).exists()
        writable = (*self.writable, Path("/proc/self/task")) if gpu else self.writable
        if landlock_version() and _restrict_files(writable, self.hidden, self.network):
            mechanisms.append("landlock")
        if refuse_calls(network=self.network, local=gpu):
            mechanisms.append("seccomp")
        return tuple(mechanisms)


def available() -> dict[str, bool]:
    """The mechanisms, and whether this machine has each.

    Landlock must have version 3 or later: earlier versions allow truncating files.
    """
    return {"landlock": landlock_version() >= 3, "seccomp": seccomp_available()}


def missing() -> tuple[str, ...]:
    """The mechanisms that this machine lacks."""
    return tuple(name for name, here in available().items() if not here)


def require(isolate: bool = True) -> None:
    """Raise EnvironmentProblem if models would not be confined on this machine.

    Raises UsageError if they do not run in separate processes (`isolate` False).
    """
    if not isolate:
        raise UsageError(
            "models are confined only in separate processes", fix="remove --no-isolate"
        )
    if lacking := missing():
        raise EnvironmentProblem(
            f"this machine cannot confine the processes that run models: {', '.join(lacking)} is"
            " missing",
            fix="use Linux 6.2 or newer with Landlock among its security modules (in a container,"
            " its seccomp profile must allow landlock_*), or remove --require-sandbox",
        )


def _restrict_files(
    writable: Sequence[Path], hidden: Sequence[Path], network: bool
) -> bool:
    readable = all_but([path.resolve() for path in hidden if path.exists()]) or None
    secret = [path.resolve() for path in hidden] if readable else []
    around = [
        path
        for path in writable
        if any(secret_path.is_relative_to(path.resolve()) for secret_path in secret)
    ]
    return restrict_files(writable, readable, unread=around, network=network)
