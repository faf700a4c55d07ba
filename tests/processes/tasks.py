"""The tasks that the tests run in workers."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from functools import partial
from typing import Any

from builder import processes


def square(number: int, report: Any) -> int:
    report("squaring", number)
    return number * number


def loaded(report: Any) -> tuple[int, bool, bool]:
    return (
        os.getpid(),
        "torch" in sys.modules,
        any(name in sys.modules for name in ("tensorrt", "tensorrt_rtx")),
    )


def crash(number: int, report: Any) -> None:
    os.kill(os.getpid(), number)


def leave(report: Any) -> None:
    os._exit(7)


def unsendable(report: Any) -> Any:
    return lambda: None


def fail(error: Exception, report: Any) -> None:
    raise error


def divide(number: int, report: Any) -> float:
    return 1 / number


def variable(name: str, report: Any) -> str:
    time.sleep(0.1)
    return os.environ[name]


def folder(report: Any) -> str:
    return os.getcwd()


def sleep(report: Any) -> None:
    report(os.getpid())
    time.sleep(120)


def ignore_exceptions(report: Any) -> None:
    """Stopped where exceptions are ignored: in a callback of a fork."""
    os.register_at_fork(after_in_parent=lambda: (report("forked"), time.sleep(1)))
    if os.fork() == 0:
        os._exit(0)
    time.sleep(1)
    report("not stopped")


def ignore_signals(report: Any) -> None:
    """Like a library that never returns to Python's signal handlers."""
    report(os.getpid())
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    time.sleep(120)


def spin(report: Any) -> None:
    while True:
        pass


def allocate(size: int, report: Any) -> int:
    return len(bytearray(size))


def write_file(report: Any) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"x")


def print_text(text: str, report: Any) -> None:
    print(text)


def nested(name: str, argument: Any, report: Any) -> Any:
    return processes.run([processes.Task(partial(globals()[name], argument))])[0]


def killed_with_a_child(report: Any) -> None:
    def kill(pid: int) -> None:
        report(pid)
        os.kill(os.getpid(), signal.SIGKILL)

    processes.run([processes.Task(sleep, kill)])


def stages(*seconds_and_report: Any) -> str:
    *seconds, report = seconds_and_report
    for name, duration in zip(("first", "second", "third"), seconds, strict=False):
        report("net", name)
        time.sleep(duration)
    return "done"
