"""Tasks in processes of their own, several at a time: one that crashes fails alone, and Ctrl-C ends
them all.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from builder.engine.zygote import GRACE_SECONDS
from builder.errors import EngineError, EnvironmentProblem

Report = Callable[..., None]


@dataclass(frozen=True)
class Task:
    """`target` ("module:function") is called with the picklable `arguments` and a function that
    reports words back; `reproduce` is the command that does the same, told with the worker's
    environment where it crashes.
    """

    target: str
    arguments: tuple[Any, ...]
    report: Report
    reproduce: str = ""


@dataclass
class _Running:
    task: Task
    number: int
    slot: int
    environment: Mapping[str, str]
    pid: int = 0
    answer: tuple[str, Any] | None = None

    def reproduce(self) -> str:
        """The task's command as a shell takes it, on the worker's GPU."""
        pinned = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*pinned, self.task.reproduce]) if self.task.reproduce else ""


class Crashed(EngineError):
    """The process of a task was ended by a signal."""

    def __init__(self, code: int, trace: str, reproduce: str) -> None:
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        # innermost first; other threads stand before it
        stack = trace.partition("Current thread")[2].splitlines()
        line = next((text.strip() for text in stack if "/builder/" in text), None)
        hint = (
            " (killed: most often by the kernel, out of memory)" if code == -signal.SIGKILL else ""
        )
        super().__init__(
            f"the process that built the model crashed with {name}{hint}",
            where=line,
            fix=f"reproduce it with: {reproduce}" if reproduce else None,
        )


def run(
    tasks: Sequence[Task], jobs: int = 1, environments: Sequence[Mapping[str, str]] = ({},)
) -> list[Any]:
    """The tasks' results in their order, `jobs` at a time; a crashed task's is a Crashed, not
    raised.

    Task slots take the `environments` in turn, before anything is loaded: that is how a worker is
    pinned to its GPU. What a task raises is raised here, after the others were stopped; so is
    Ctrl-C.
    """
    pool = _Pool(tasks, max(jobs, 1), environments)
    try:
        return pool.run()
    finally:
        pool.stop()


@dataclass
class _Pool:
    tasks: Sequence[Task]
    jobs: int
    environments: Sequence[Mapping[str, str]]
    active: dict[Connection, _Running] = field(default_factory=dict)

    def run(self) -> list[Any]:
        results: dict[int, Any] = {}
        waiting = iter(enumerate(self.tasks))
        while True:
            self._fill(waiting)
            if not self.active:
                return [results[number] for number in range(len(self.tasks))]
            for ready in wait(list(self.active)):
                assert isinstance(ready, Connection)
                ended = self._read(ready)
                if ended:
                    results[ended.number] = _outcome(ended)

    def _fill(self, waiting: Iterator[tuple[int, Task]]) -> None:
        while len(self.active) < self.jobs:
            number, task = next(waiting, (0, None))
            if task is None:
                return
            slot = min(set(range(self.jobs)) - {running.slot for running in self.active.values()})
            connection = _connect()
            environment = self.environments[slot % len(self.environments)]
            self.active[connection] = _Running(task, number, slot, environment)
            connection.send((task.target, task.arguments, dict(environment), os.getcwd()))

    def _read(self, connection: Connection) -> _Running | None:
        """Take one message; the task, where it was its last."""
        running = self.active[connection]
        try:
            kind, *words = connection.recv()
        except (OSError, EOFError) as error:  # not even its supervisor is left
            kind, words = "ended", [1, f"{type(error).__name__}"]
        if kind == "pid":
            running.pid = words[0]
        elif kind == "report":
            running.task.report(*words[0])
        elif kind == "ended":
            connection.close()
            del self.active[connection]
            running.answer = running.answer or (
                "crashed",
                Crashed(words[0], words[1], running.reproduce()),
            )
            return running
        else:
            running.answer = (kind, words[0])
        return None

    def stop(self) -> None:
        """Tell all that run to stop, and kill after a while those that cannot."""
        for connection in self.active:
            with contextlib.suppress(OSError):
                connection.send("stop")
        until = time.monotonic() + GRACE_SECONDS + 1
        while self.active and time.monotonic() < until:
            for ready in wait(list(self.active), timeout=0.1):
                assert isinstance(ready, Connection)
                self._silenced(ready)
        for running in self.active.values():
            if running.pid:  # kill(0) would be all of us
                with contextlib.suppress(ProcessLookupError):
                    os.kill(running.pid, signal.SIGKILL)
        self.active.clear()

    def _silenced(self, connection: Connection) -> None:
        self.active[connection].task = Task("", (), lambda *_: None)
        self._read(connection)


def _outcome(running: _Running) -> Any:
    assert running.answer is not None
    kind, value = running.answer
    if kind == "raised":
        raise value
    return value


class _Zygote:
    """The process that workers are forked from; started when first needed, ended with this
    process.
    """

    process: subprocess.Popen[bytes] | None = None
    control: socket.socket | None = None

    def connect(self) -> Connection:
        """A connection to a new worker. Raises EnvironmentProblem where none can be started."""
        ours, theirs = socket.socketpair()
        with theirs:
            for _ in range(2):  # a zygote that somebody killed is replaced once
                with contextlib.suppress(OSError):
                    socket.send_fds(self._started(), [b"w"], [theirs.fileno()])
                    return Connection(ours.detach())
                self.close()
        raise EnvironmentProblem("the process that builds are forked from does not start")

    def _started(self) -> socket.socket:
        if self.process is None or self.process.poll() is not None or self.control is None:
            self.close()
            self.control, theirs = socket.socketpair()
            with theirs, _interrupts_ignored():
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "builder.engine.zygote", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    env=_environment(),
                )
            atexit.register(self.close)
        return self.control

    def close(self) -> None:
        """End it; the workers that it has forked go on."""
        if self.control is not None:
            self.control.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.control = self.process = None


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A process that is started meanwhile ignores Ctrl-C from its first moment; only the main
    thread may say so.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


_zygote = _Zygote()
_connect = _zygote.connect


def _environment() -> dict[str, str]:
    """This process's, with the folder that `builder` was imported from first on the path."""
    here = str(Path(__file__).resolve().parents[2])
    rest = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{rest}" if rest else here}
