"""Watches the processes of Python models. Triton keeps a model "ready" after its process has ended,
and fails every request to it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from builder.serving.installation import STUB

ENDED = ("Z", "X")
"""The states of an ended process in /proc/PID/stat."""


class Stubs:
    """The Python backend's processes of one server."""

    def __init__(self, server: int) -> None:
        self.server = server
        self.models: dict[int, str] = {}
        self.ended: set[str] = set()

    def look(self) -> None:
        """Record which processes run now, and which have ended.

        The end of a process is only detected if it was seen running. The first look therefore comes
        before clients can send requests to its model.
        """
        living = {pid: model for pid, model in self._living().items() if model}
        self.ended |= {model for pid, model in self.models.items() if pid not in living}
        self.models = living

    def dead(self) -> list[str]:
        """Return the names of models with a process that ended since the last call.

        A process also ends when its model is unloaded.
        """
        self.look()
        ended = sorted(self.ended)
        self.ended = set()
        return ended

    def running(self, model: str) -> int:
        """The number of running processes of the model."""
        return sum(name == model for name in self._living().values())

    def _living(self) -> dict[int, str | None]:
        """The server's running children, with the model of each stub."""
        models: dict[int, str | None] = {}
        # glob("[0-9]*/stat") fails if a process ends meanwhile: pathlib checks that the file exists
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = process.joinpath("stat").read_text()
                state, parent = stat.rpartition(")")[2].split()[:2]
                if int(parent) == self.server and state not in ENDED:
                    models[int(process.name)] = _model(process)
        return models


def _model(process: Path) -> str | None:
    """The model that a stub runs. Its command line has
    `<repository>/<model>/<version>/model.py`.
    """
    program, *arguments = process.joinpath("cmdline").read_text().split("\0")
    if Path(program).name == STUB:
        return Path(arguments[0]).parent.parent.name
    return None
