"""The process that every build is forked from: `python -m builder.engine.zygote DESCRIPTOR`.

It imports torch once, which takes seconds, and then forks a worker for each task, which takes
milliseconds: a worker begins with everything imported and nothing used. Forking is sound here
because this process starts no thread, loads no TensorRT and touches no GPU; all of that happens in
the worker, and ends with it. A fork of the caller would not be: its threads (OpenMP, CUDA, a
notebook's) do not survive one. multiprocessing's forkserver would run the caller's main module
again in every child, which a script without a `__main__` guard does not survive either.

Over the socket DESCRIPTOR comes a socket for each task; on that one, pickled:
  to the worker    (target "module:function", arguments, environment, folder), then perhaps
  anything, which means: stop from the worker  ("pid", pid), ("report", words) any number of times,
  ("result", value) or ("raised", exception) from its parent  ("ended", exit code, what faulthandler
  saw), when the worker is gone
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from types import FrameType
from typing import Any

PRELOADED = (
    "builder.conversion",
    "builder.parity",
    "builder.partition",
    "builder.triton",
    "builder.torchscript",
)
GRACE_SECONDS = 5.0


def main(descriptor: int) -> None:
    """Fork a worker for every socket that comes, until the other side closes."""
    # Ctrl-C reaches the whole group; the caller decides what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for supervisors
    for module in PRELOADED:
        importlib.import_module(module)
    with socket.socket(fileno=descriptor) as control:
        while True:
            message, descriptors, *_ = socket.recv_fds(control, 1, 1)
            if not message:
                return
            if os.fork() == 0:
                control.close()
                _supervise(Connection(descriptors[0]))
            os.close(descriptors[0])


def _supervise(connection: Connection) -> None:
    """Fork the worker, wait for its end, and tell how it ended: a process that crashed cannot say
    so itself.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with tempfile.TemporaryFile() as trace:
        pid = os.fork()
        if pid == 0:
            faulthandler.enable(trace)
            _work(connection)
        _, status = os.waitpid(pid, 0)
        trace.seek(0)
        seen = trace.read().decode(errors="replace")
    with contextlib.suppress(OSError):
        connection.send(("ended", os.waitstatus_to_exitcode(status), seen))
    os._exit(0)


def _work(connection: Connection) -> None:
    """Run one task and answer; never returns."""
    from builder.torchscript import trial

    trial.FORKS = True
    sys.unraisablehook = _unraisable
    # nobody waits for the answer any more
    with contextlib.suppress(KeyboardInterrupt, EOFError, OSError):
        connection.send(("pid", os.getpid()))
        target, arguments, environment, folder = connection.recv()
        signal.signal(signal.SIGTERM, _stop)
        try:
            threading.Thread(target=_listen, args=(connection,), daemon=True).start()
            os.chdir(folder)  # the caller's own may be another by now, and `out` is relative to it
            answer = ("result", _run(target, arguments, environment, connection))
        except BaseException as error:
            answer = ("raised", ExceptionWithTraceback(error, error.__traceback__))
        _send(connection, answer)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without the interpreter's end: a library's destructors have no more business here


def _run(
    target: str, arguments: tuple[Any, ...], environment: Mapping[str, str], connection: Connection
) -> Any:
    os.environ.update(environment)
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    return function(*arguments, lambda *words: connection.send(("report", words)))


def _send(connection: Connection, answer: tuple[str, Any]) -> None:
    try:
        connection.send(answer)
    # what pickle raises for what it cannot take
    except (TypeError, AttributeError, ValueError) as error:
        connection.send(
            ("raised", RuntimeError(f"the worker's answer {answer[1]!r} cannot be sent: {error}"))
        )


def _listen(connection: Connection) -> None:
    """Anything that the caller says now, its end included, means stop: TensorRT at its next step,
    Python at once.
    """
    from builder.engine import progress

    with contextlib.suppress(OSError, EOFError):
        connection.recv()
    progress.CANCEL.set()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _unraisable(seen: Any) -> None:
    """A stop that met Python where nothing can be raised (a callback of a fork, a destructor) is
    said again soon.
    """
    if isinstance(seen.exc_value, KeyboardInterrupt):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        sys.__unraisablehook__(seen)


if __name__ == "__main__":
    main(int(sys.argv[1]))
