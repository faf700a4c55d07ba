"""The caller's side of the fork server, which starts on first use, restarts if killed, and ends
with this process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from builder.errors import EnvironmentProblem
from builder.processes import worker
from builder.processes.sandbox import SECRET_VARIABLES


class ForkServer:
    """The process that workers are forked from."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        self._lock = threading.Lock()

    def connect(self, modules: Sequence[str] = ()) -> Connection:
        """Return a connection to a new worker that has `modules` imported.

        In a worker, the new worker is forked from the worker itself, and inherits its limits.
        Raises EnvironmentProblem if the fork server does not start.
        """
        own_end, child_end = map(_connection, socket.socketpair())
        if worker.is_worker():
            worker.preload(modules)
            worker.fork_nested(child_end, own_end)
            return own_end
        with child_end, self._lock:
            for _ in range(2):  # a server that was killed is replaced once
                with contextlib.suppress(OSError):
                    socket.send_fds(self._started(), [b"w"], [child_end.fileno()])
                    own_end.send(tuple(modules))
                    return own_end
                self.close()
        raise EnvironmentProblem("the fork server does not start")

    def _started(self) -> socket.socket:
        if (
            self.process is None
            or self.process.poll() is not None
            or self.control is None
        ):
            self.close()
            self.control, child_end = socket.socketpair()
            with child_end, _interrupts_ignored():
                self.process = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "builder.processes.server",
                        str(child_end.fileno()),
                    ],
                    pass_fds=[child_end.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=_environment(),
                )
            atexit.register(self.close)
        return self.control

    def close(self) -> None:
        """End the server. Workers that it has forked continue."""
        if self.control is not None:
            self.control.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.control = self.process = None


def _connection(end: socket.socket) -> Connection:
    return Connection(end.detach())


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A block in which started processes ignore Ctrl-C from the beginning.

    Only the main thread can set this. In other threads nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _environment() -> dict[str, str]:
    """This process's environment without secrets. The folder from which `builder` was imported is
    first on the path.
    """
    here = str(Path(__file__).resolve().parents[2])
    python_path = os.environ.get("PYTHONPATH")
    variables = {
        key: value for key, value in os.environ.items() if key not in SECRET_VARIABLES
    }
    return {
        **variables,
        "PYTHONPATH": f"{here}{os.pathsep}{python_path}" if python_path else here,
    }


server = ForkServer()
connect = server.connect
close = server.close
