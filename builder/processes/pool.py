"""Runs tasks in worker processes, several at a time."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from builder.errors import EngineError
from builder.processes.fork_server import connect
from builder.processes.limits import UNLIMITED, Limits
from builder.processes.sandbox import Sandbox
from builder.processes.worker import GRACE_SECONDS

Report = Callable[..., None]

FIRST_LINE_OF_STACK = "Current thread"


def _ignore(*words: object) -> None:
    pass


Result = TypeVar("Result")


@dataclass(frozen=True)
class Task(Generic[Result]):
    """A call in a worker.

    `target`: a function of a module, or a `functools.partial` of one with picklable arguments. The
    worker imports it by name. Its last argument is a function that sends text to `report`.
    `reproduce`: the command that does the same. The message of a crash includes it, with the
    worker's environment.
    `sandbox`: confines the worker before it imports the function; None: no confinement.
    `handlers`: the functions of this process that the worker may call, by name. They must be safe
    for an untrusted worker.
    `on_result`: called with the result when the task has ended.
    """

    target: Callable[[Report], Result]
    report: Report = _ignore
    reproduce: str = ""
    limits: Limits = UNLIMITED
    sandbox: Sandbox | None = None
    handlers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    on_result: Callable[[Any], None] = _ignore

    def call(self) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
        """The function's name as "module:function", and all its arguments except the last."""
        bound = (
            self.target if isinstance(self.target, partial) else partial(self.target)
        )
        module = bound.func.__module__
        if module == "__main__":
            # a worker imports it by the name that it was started with
            module = getattr(sys.modules[module].__spec__, "name", module)
        return f"{module}:{bound.func.__name__}", bound.args, bound.keywords


class TimedOut(EngineError):
    """A task was ended because one of its stages took too long."""

    def __init__(self, stage: str, seconds: float) -> None:
        name = stage.rpartition(": ")[2]  # results begin with the name of the model
        what = f"the stage {name!r}" if name else "the model"
        super().__init__(
            f"{what} took more than {seconds:g} s and was ended",
            fix="raise limits.stage_seconds in the manifest if the model needs that long",
        )
        self.stage = stage


FAULTS = tuple(
    -getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL")
)
"""The exit codes of processes whose own code failed."""


class Crashed(EngineError):
    """The process of a task was ended by a signal, or ended without a result.

    `code` is its exit code, or the negative signal number. `is_fault`: whether a native library
    failed; False if another process ended it.
    """

    def __init__(self, code: int, trace: str, reproduce: str) -> None:
        self.code = code
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        # innermost first, after the frames of other threads
        stack = trace.partition(FIRST_LINE_OF_STACK)[2].splitlines()
        line = next((text.strip() for text in stack if "/builder/" in text), None)
        self.is_fault = code in FAULTS
        killed = code == -signal.SIGKILL
        hint = " (killed: most often by the kernel, out of memory)" if killed else ""
        super().__init__(
            f"the process that ran the model crashed with {name}{hint}",
            where=line,
            fix=f"reproduce it with: {reproduce}" if reproduce else None,
        )


def run(
    tasks: Sequence[Task[Result]],
    jobs: int = 1,
    environments: Sequence[Mapping[str, str]] = ({},),
    *,
    modules: Sequence[str] = (),
    grace: float = GRACE_SECONDS,
) -> list[Result | Crashed | TimedOut]:
    """The results of the tasks in order, with `jobs` tasks at a time. A crashed task has a Crashed,
    and a task with a stage that took too long a TimedOut.

    Task slots use the `environments` cyclically. These are set before anything is loaded, which
    pins a worker to its GPU. `modules` are imported once, in the process that all workers are
    forked from. An exception in a task is raised here after the other tasks were stopped; Ctrl-C is
    handled likewise. A worker that does not stop within `grace` seconds is killed.
    """
    pool = _Pool(tasks, max(jobs, 1), environments, modules, grace)
    try:
        return pool.run()
    finally:
        pool.stop()


@dataclass
class _Running:
    task: Task[Any]
    number: int
    slot: int
    environment: Mapping[str, str]
    pid: int = 0
    reply: tuple[str, Any] | None = None
    stage: str = ""
    deadline: float = math.inf

    def begin(self, stage: str = "") -> None:
        """Record the begin of a stage. `stage` is the task's report."""
        self.stage = stage
        if self.task.limits.stage_seconds is not None:
            self.deadline = time.monotonic() + self.task.limits.stage_seconds

    def reproduce(self) -> str:
        """The task's command as shell text, with the variables of the worker's GPU."""
        pinned = [
            f"{name}={shlex.quote(value)}" for name, value in self.environment.items()
        ]
        if self.task.reproduce:
            return " ".join([*pinned, self.task.reproduce])
        return ""


@dataclass
class _Pool:
    tasks: Sequence[Task[Any]]
    jobs: int
    environments: Sequence[Mapping[str, str]]
    modules: Sequence[str]
    grace: float
    active: dict[Connection, _Running] = field(default_factory=dict)

    def run(self) -> list[Any]:
        results: dict[int, Any] = {}
        waiting = iter(enumerate(self.tasks))
        while True:
            self._fill(waiting)
            if not self.active:
                return [results[number] for number in range(len(self.tasks))]
            for ready in wait(list(self.active), timeout=self._until_next_deadline()):
                assert isinstance(ready, Connection)
                ended = self._read(ready)
                if ended:
                    results[ended.number] = _outcome(ended)
                    ended.task.on_result(results[ended.number])
            self._end_late()

    def _until_next_deadline(self) -> float | None:
        """The time to the next deadline in seconds; None if no task has a deadline."""
        next_one = min(running.deadline for running in self.active.values())
        if next_one == math.inf:
            return None
        return max(0.0, next_one - time.monotonic())

    def _end_late(self) -> None:
        """Kill each worker whose stage took too long. Its supervisor then reports its end."""
        for running in self.active.values():
            if running.deadline <= time.monotonic() and running.pid:
                running.deadline = math.inf
                seconds = running.task.limits.stage_seconds or 0.0
                running.reply = ("crashed", TimedOut(running.stage, seconds))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(running.pid, signal.SIGKILL)

    def _fill(self, waiting: Iterator[tuple[int, Task[Any]]]) -> None:
        while len(self.active) < self.jobs:
            number, task = next(waiting, (0, None))
            if task is None:
                return
            slot = min(
                set(range(self.jobs))
                - {running.slot for running in self.active.values()}
            )
            connection = connect(self.modules)
            environment = self.environments[slot % len(self.environments)]
            self.active[connection] = _Running(task, number, slot, environment)
            # the end of a worker is reported when its connection is read
            with contextlib.suppress(ConnectionError):
                connection.send(
                    (
                        *task.call(),
                        dict(environment),
                        os.getcwd(),
                        task.limits,
                        task.sandbox,
                        tuple(task.handlers),
                    )
                )

    def _read(self, connection: Connection) -> _Running | None:
        """Read one message. Returns the task if the message was its last."""
        running = self.active[connection]
        try:
            kind, *words = connection.recv()
        except (OSError, EOFError) as error:  # its supervisor has also ended
            kind = "ended"
            words = [1, f"{type(error).__name__}"]
        if kind == "pid":
            running.pid = words[0]
            running.begin()
        elif kind == "report":
            running.begin(": ".join(map(str, words[0])))
            running.task.report(*words[0])
        elif kind == "call":
            with contextlib.suppress(OSError):
                # its end is reported when the connection is read
                connection.send(_handle(running.task, *words))
        elif kind == "ended":
            connection.close()
            del self.active[connection]
            running.reply = running.reply or (
                "crashed",
                Crashed(words[0], words[1], running.reproduce()),
            )
            return running
        else:
            running.reply = (kind, words[0])
        return None

    def stop(self) -> None:
        """Stop all running workers, and kill those that do not stop in time."""
        for connection in self.active:
            with contextlib.suppress(OSError):
                connection.send("stop")
        until = time.monotonic() + self.grace + (1 if self.grace else 0)
        while self.active and time.monotonic() < until:
            for ready in wait(list(self.active), timeout=0.1):
                assert isinstance(ready, Connection)
                self._read_silently(ready)
        for running in self.active.values():
            if running.pid:  # kill(0) would end the caller's whole process group
                with contextlib.suppress(ProcessLookupError):
                    os.kill(running.pid, signal.SIGKILL)
        self.active.clear()

    def _read_silently(self, connection: Connection) -> None:
        running = self.active[connection]
        running.task = replace(
            running.task, report=_ignore, handlers={}, on_result=_ignore
        )
        self._read(connection)


def _handle(
    task: Task[Any], question: str, arguments: tuple[Any, ...]
) -> tuple[str, Any]:
    try:
        return "reply", task.handlers[question](*arguments)
    except Exception as error:
        return "refusal", error


def _outcome(running: _Running) -> Any:
    assert running.reply is not None
    kind, value = running.reply
    if kind == "raised":
        raise value
    return value
