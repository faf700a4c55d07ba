"""The options of every command (--json, --quiet, --verbose, --debug), and the conversion of an
error to a message and an exit code.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

import click

from builder import interruption
from builder.cli import paths
from builder.cli.formatting import Context, epilog
from builder.cli.terminal import Terminal, only_json

if TYPE_CHECKING:
    import threading

UNREAD = 141
RETRY_SECONDS = 0.05
"""The delay of a signal that arrives while numpy is imported."""


class Stopped(KeyboardInterrupt):
    """A signal, raised as an exception like Ctrl-C so that work in progress is cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


FLAGS = (
    (("--json", "as_json"), "Print one JSON document on stdout."),
    (("--quiet", "-q"), "Show no progress and no hints."),
    (("--verbose", "-v"), "Show all rows instead of a summary."),
    (("--debug",), "Show the traceback of an error."),
)
"""The flags of every command: their names, and their help."""


class Command(click.Command):
    """A command whose function takes a Terminal first (see `command`) and returns the exit code, or
    None for 0.
    """

    context_class = Context

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for option in self.params:
            if isinstance(option, click.Option) and option.show_default is None:
                option.show_default = not option.is_flag
        for names, text in FLAGS:
            self.params.append(click.Option([*names], is_flag=True, help=text))

    def invoke(self, ctx: click.Context) -> Any:
        flags = {
            key: ctx.params.pop(key) for key in ("as_json", "debug", "quiet", "verbose")
        }
        terminal = Terminal(**flags)
        ctx.obj = terminal
        with _terminable() as signals:
            if terminal.as_json:
                with only_json() as terminal.out:
                    code = self._guarded(ctx, terminal, signals.received)
            else:
                code = self._guarded(ctx, terminal, signals.received)
        if signals.pending:
            code = _interrupted(terminal, signals.pending[-1])
        ctx.exit(code)

    def _guarded(
        self, ctx: click.Context, terminal: Terminal, received: list[int]
    ) -> int:
        try:
            with paths.local(ctx, terminal):
                code = int(super().invoke(ctx) or 0)
            # report a full disk here; otherwise the interpreter fails at exit
            for stream in _streams(terminal):
                stream.flush()
            return code
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt as stop:
            return _interrupted(terminal, getattr(stop, "number", signal.SIGINT))
        except BaseException as error:
            if received:  # a library replaced the interrupt, as numpy's import does
                return _interrupted(terminal, received[-1])
            return exit_code_of(terminal, error)


def exit_code_of(terminal: Terminal, error: BaseException) -> int:
    """Show the error that ended the command, unless the reader of the output is gone. Returns the
    exit code of the process.
    """
    if isinstance(error, BrokenPipeError) and _output_is_closed(terminal):
        return UNREAD
    if terminal.debug:
        import traceback

        traceback.print_exc()
    code = report(terminal, error)
    _discard_unwritable(terminal)
    return code


def command(
    name: str, *examples: str, short_help: str | None = None
) -> Callable[[Callable[..., Any]], Command]:
    """Decorates the function of a command, which takes a Terminal first. `short_help` is that of a
    command of a group.
    """
    make = click.command(
        name, cls=Command, short_help=short_help, epilog=epilog(examples)
    )
    return lambda function: make(click.pass_obj(function))


def _interrupted(terminal: Terminal, number: int) -> int:
    """Report the signal and return the exit code of the process."""
    with contextlib.suppress(OSError):  # after SIGHUP there is no terminal
        terminal.note(interruption.MESSAGE)
    return 128 + number


def _streams(terminal: Terminal) -> list[TextIO]:
    """The open streams of standard output and standard error; `>&-` closes one."""
    return [stream for stream in (terminal.out or sys.stdout, sys.stderr) if stream]


def _output_is_closed(terminal: Terminal) -> bool:
    """Whether the reader closed the pipe (`| head -1`); the remaining output is then discarded."""
    watch = select.poll()
    for stream in _streams(terminal):
        watch.register(stream.fileno(), 0)
    gone = [number for number, event in watch.poll(0) if event & select.POLLERR]
    for number in gone:
        _discard(number)
    return bool(gone)


def _discard_unwritable(terminal: Terminal) -> None:
    for stream in _streams(terminal):
        try:
            stream.flush()
        except OSError:
            _discard(stream.fileno())


def _discard(number: int) -> None:
    """Discard the rest of this stream's output. Otherwise the interpreter fails when it flushes at
    exit.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), number)


class _Signals:
    """The signals of a command: `received` has those that interrupted it, and `pending` those that
    had not when it ended.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.pending: list[int] = []
        self._retries: list[tuple[threading.Timer, int]] = []
        self._ended = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Interrupt the command, but not while it imports numpy."""
        if self._ended:
            self.pending.append(number)
        elif _imports_numpy(frame):
            self._retry(number)
        else:
            self.received.append(number)
            raise Stopped(number)

    def _retry(self, number: int) -> None:
        import threading

        retry = threading.Timer(RETRY_SECONDS, os.kill, (os.getpid(), number))
        self._retries.append((retry, number))
        retry.start()

    def end(self) -> None:
        """Stop the retries. A signal that was sent after the command would not be handled."""
        self._ended = True
        for retry, number in self._retries:
            if not retry.finished.is_set():
                self.pending.append(number)
            retry.cancel()
            retry.join()


@contextmanager
def _terminable() -> Iterator[_Signals]:
    """Let SIGTERM and SIGHUP end the command as Ctrl-C does. Yields the signals.

    Only the main thread can set the handlers. An ignored SIGINT or SIGHUP stays ignored, as with
    nohup.
    """
    signals = _Signals()
    handled = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        handled.append(signal.SIGHUP)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        handled.append(signal.SIGINT)
    try:
        before = {number: signal.signal(number, signals.handle) for number in handled}
    except ValueError:
        yield signals
        return
    try:
        yield signals
    finally:
        signals.end()
        for number, handler in before.items():
            signal.signal(number, handler)


def _imports_numpy(frame: FrameType | None) -> bool:
    """Whether numpy is being imported in this frame or its callers. Its extension modules would
    print the traceback of an interrupt, and hide it.
    """
    while frame is not None:
        package, _, _ = str(frame.f_globals.get("__name__")).partition(".")
        if package == "numpy" and frame.f_code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


def report(terminal: Terminal, error: BaseException) -> int:
    """Show the error and return the exit code of the process."""
    if not isinstance(error, Exception):
        raise error
    from builder import unforeseen

    known = unforeseen.as_defect(error)
    terminal.failure(str(known), known.as_dict())
    return known.exit_code
