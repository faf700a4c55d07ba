"""The worker's side: fork a process for one task, run the task there, and report how it ended.

Messages on a worker's connection, pickled:
    to the worker    ("module:function", arguments, keywords, environment, folder, limits, sandbox,
                     the names of the caller's functions), then for each call ("reply", value) or
                     ("refusal", exception); any other message means stop
    from the worker  ("pid", pid), ("report", words) and ("call", function, arguments) any number of
                     times, ("result", value) or ("raised", exception)
    from its parent  ("ended", exit code, faulthandler's output), when the worker has ended
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import queue
import shutil
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.pool import ExceptionWithTraceback  # type: ignore[attr-defined]
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from builder.printable import PrintableStream

if TYPE_CHECKING:
    from builder.processes.limits import Limits
    from builder.processes.sandbox import Sandbox

GRACE_SECONDS = 5.0

CANCEL = threading.Event()
"""Set in a worker when its task must stop. Libraries that Python cannot interrupt poll it."""

_PR_SET_PDEATHSIG = 1

_own_connection: Connection | None = None


_questions: tuple[str, ...] = ()
_replies: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()


def can_ask(question: str) -> bool:
    """Whether this process runs a task whose caller provides the function `question`."""
    return question in _questions


def call_parent(function: str, *arguments: object) -> Any:
    """Call a function of the caller, for data that a worker may not read itself. Raises the
    exceptions of the caller's function.
    """
    assert _own_connection is not None
    _own_connection.send(("call", function, arguments))
    kind, value = _replies.get()
    if kind == "refusal":
        raise value
    return value


def is_worker() -> bool:
    """Whether this process runs a task for another one."""
    return _own_connection is not None


def preload(modules: Iterable[str]) -> None:
    """Import modules and ignore failures. A worker that needs such a module raises the error
    itself.
    """
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)


def fork_nested(connection: Connection, callers_end: Connection) -> None:
    """Fork a worker from this worker. It inherits the limits of this process, and ends with it."""
    if os.fork() == 0:
        _end_with_parent()
        callers_end.close()
        if _own_connection is not None:
            _own_connection.close()
        supervise(connection)
    connection.close()


def supervise(connection: Connection) -> NoReturn:
    """Fork the worker, wait for its end, and report it, because a crashed process cannot."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    private = Path(tempfile.gettempdir()) / f"trt-build-{uuid.uuid4().hex}"
    with tempfile.TemporaryFile() as trace:
        pid = os.fork()
        if pid == 0:
            faulthandler.enable(trace)
            _work(connection, private)
        _, status = os.waitpid(pid, 0)
        trace.seek(0)
        printed = trace.read().decode(errors="replace")
    shutil.rmtree(private, ignore_errors=True)
    with contextlib.suppress(OSError):
        connection.send(("ended", os.waitstatus_to_exitcode(status), printed))
    os._exit(0)


def _work(connection: Connection, private: Path) -> NoReturn:
    """Run one task and send its result. A confined task has the temporary folder `private`."""
    global _own_connection, _questions
    _own_connection = connection
    _questions = ()
    _end_with_parent()
    sys.unraisablehook = _unraisable
    # output of a model or a library must not mix with the caller's output
    os.dup2(2, 1)
    sys.stdout = PrintableStream(sys.stderr)
    # suppressed: the caller has ended
    with contextlib.suppress(KeyboardInterrupt, EOFError, OSError):
        connection.send(("pid", os.getpid()))
        *call, environment, folder, limits, sandbox, _questions = connection.recv()
        signal.signal(signal.SIGTERM, _stop)
        try:
            if sandbox is not None:
                # before any thread exists, because it would stay unconfined
                _confine(sandbox, private)
            threading.Thread(target=_listen, args=(connection,), daemon=True).start()
            os.chdir(folder)  # the fork server may have been started in another folder
            reply = ("result", _run(call, environment, limits, connection))
        except BaseException as error:
            reply = ("raised", ExceptionWithTraceback(error, error.__traceback__))
        _send(connection, reply)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    # skips the interpreter's shutdown, which would run libraries' destructors
    os._exit(0)


def _confine(sandbox: Sandbox, private: Path) -> None:
    private.mkdir(0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = str(private)
    replace(sandbox, writable=(*sandbox.writable, private)).apply()


def _run(
    call: Sequence[Any],
    environment: Mapping[str, str],
    limits: Limits,
    connection: Connection,
) -> Any:
    os.environ.update(environment)
    target, arguments, keywords = call
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    limits.apply()
    return function(
        *arguments, lambda *words: connection.send(("report", words)), **keywords
    )


def _send(connection: Connection, reply: tuple[str, Any]) -> None:
    try:
        connection.send(reply)
    # pickle's errors for an unsupported object
    except (TypeError, AttributeError, ValueError) as error:
        message = f"the worker's result {reply[1]!r} cannot be sent: {error}"
        connection.send(("raised", RuntimeError(message)))


def _listen(connection: Connection) -> None:
    """Store the caller's answers. Stop on any other message, and at the caller's end.

    A library that polls CANCEL stops at its next step, Python immediately.
    """
    with contextlib.suppress(OSError, EOFError):
        while (message := connection.recv())[0] in ("reply", "refusal"):
            _replies.put(message)
    CANCEL.set()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _unraisable(unraisable: Any) -> None:
    """Raise a stop again if it arrived where Python cannot raise exceptions, as in a destructor."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
    else:
        sys.__unraisablehook__(unraisable)


def _end_with_parent() -> None:
    """Request that the kernel kills this process when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
