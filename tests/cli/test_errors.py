"""Every error becomes a message and an exit code, as text and as JSON."""

from __future__ import annotations

import errno
import json
import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner, Result

from builder import errors, unforeseen
from builder.cli import main
from builder.cli.command import Command
from builder.cli.terminal import Terminal
from builder.serving import Server


@pytest.fixture
def default_signals() -> Iterator[None]:
    """The handlers of a new process. nohup ignores SIGHUP, and a shell's `&` SIGINT."""
    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    inherited = {
        number: signal.signal(number, handler) for number, handler in handlers.items()
    }
    yield
    for number, handler in inherited.items():
        signal.signal(number, handler)


def raising(error: BaseException, *arguments: str) -> Result:
    """The result of a command that raises `error`."""

    @click.command(cls=Command)
    @click.pass_obj
    def failing(terminal: Terminal, /) -> None:
        raise error

    return CliRunner().invoke(failing, list(arguments))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ModelFileError("m"), 1),
        (errors.LoweringError("m"), 1),
        (errors.UsageError("m"), 2),
        (errors.ManifestError([]), 2),
        (errors.ParityError("m"), 3),
        (errors.EnvironmentProblem("m"), 4),
        (errors.ServerError("m"), 4),
        (OSError(errno.ENOSPC, "No space left on device"), 4),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 4),
        (OSError(errno.EMFILE, "Too many open files"), 4),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), 4),
        (MemoryError(), 4),
        (ModuleNotFoundError("No module named 'tensorrt_rtx'", name="tensorrt_rtx"), 4),
        (KeyError("x"), 70),
        (OSError(errno.ENOENT, "No such file"), 70),
        (ModuleNotFoundError("No module named 'builder.x'", name="builder.x"), 70),
        (KeyboardInterrupt(), 130),
        (click.UsageError("m"), 2),
    ],
)
def test_every_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert raising(error).exit_code == code


def reset_by_worker() -> Exception:
    """The error of reading from a worker that ended without reading its task."""
    own_end, workers_end = Pipe()
    own_end.send("task")
    workers_end.close()
    with pytest.raises(ConnectionResetError) as caught:
        own_end.recv()
    return caught.value


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (ConnectionRefusedError("no"), "the connection to a server failed: no"),
        (TimeoutError("timed out"), "the connection to a server failed: timed out"),
        (
            TimeoutError(errno.ETIMEDOUT, "Connection timed out", "/x"),
            "Connection timed",
        ),
        (OSError(errno.ENOTCONN, "Endpoint is not connected", "/x"), "Endpoint is not"),
        (reset_by_worker(), "this is a defect of trt-build: ConnectionResetError"),
    ],
)
def test_only_errors_of_a_server_connection_are_called_so(
    error: Exception, message: str
) -> None:
    assert raising(error).stderr.startswith(f"error: {message}")


@pytest.mark.parametrize(
    ("number", "name", "fix"),
    [
        (errno.EDQUOT, "--out", "free disk space"),
        (
            errno.EROFS,
            "--out",
            "give this user access to it, or use another --out",
        ),
        (errno.ENAMETOOLONG, "--out", "use a shorter --out"),
        (errno.ENAMETOOLONG, "repository", "use a shorter path"),
        (errno.EIO, "--out", "check the disk"),
        (errno.ENOTDIR, "--out", "use another --out"),
    ],
)
def test_file_system_error_has_one_fix(number: int, name: str, fix: str) -> None:
    assert unforeseen.file_system_fix(OSError(number, "m"), name) == fix


def test_removed_working_directory_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = raising(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    assert result.exit_code == 4
    assert result.stderr.startswith("error: the working directory was removed\n")


def test_error_has_message_location_and_fix() -> None:
    result = raising(
        errors.ModelFileError("it is broken", where="a.pt", fix="save it again")
    )
    assert (
        result.stderr == "error: it is broken\n  where: a.pt\n  fix:   save it again\n"
    )
    assert result.stdout == ""


def test_error_as_json_is_one_document_on_stdout() -> None:
    result = raising(
        errors.ModelFileError("it is broken", where="a.pt", fix="save it again"),
        "--json",
    )
    assert json.loads(result.stdout) == {
        "error": {
            "kind": "ModelFileError",
            "message": "it is broken",
            "exit_code": 1,
            "where": "a.pt",
            "fix": "save it again",
        }
    }


def test_json_lists_each_mistake_and_each_operator() -> None:
    mistakes = [errors.Mistake("a.yaml", 3, "m", "f"), errors.Mistake("a.yaml", 4, "n")]
    found = json.loads(raising(errors.ManifestError(mistakes), "--json").stdout)[
        "error"
    ]["mistakes"]
    assert [(mistake["line"], mistake["message"]) for mistake in found] == [
        (3, "m"),
        (4, "n"),
    ]
    operator = errors.UnsupportedOperator("aten::x", "n", "a.py:1", "none", "fix")
    found = json.loads(
        raising(errors.UnsupportedOperators([operator]), "--json").stdout
    )["error"]
    assert found["operators"] == [vars(operator)]


def test_defect_asks_for_a_report_and_shows_no_traceback() -> None:
    result = raising(KeyError("x"))
    assert "defect of trt-build: KeyError: 'x'" in result.stderr
    assert "please report it" in result.stderr
    assert "Traceback" not in result.stderr


def test_defect_in_a_worker_names_the_failed_line() -> None:
    error = ZeroDivisionError("division by zero")
    error.__cause__ = RuntimeError(
        'File "/x/builder/processes/worker.py", line 90, in _run\n'
        '  File "/x/builder/conversion/a.py",'
        ' line 7, in relu\n  File "/lib/torch/b.py", line 1, in c'
    )
    assert "/x/builder/conversion/a.py:7 in relu" in raising(error).stderr


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in raising(KeyError("x"), "--debug").stderr
    assert "Traceback" in raising(errors.UsageError("x"), "--debug").stderr


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signal_runs_cleanup_and_restores_the_handler(
    default_signals: None, number: int, code: int
) -> None:
    cleaned = []

    @click.command(cls=Command)
    @click.pass_obj
    def waiting(terminal: Terminal, /) -> None:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            cleaned.append(True)

    assert CliRunner().invoke(waiting).exit_code == code
    assert cleaned == [True]
    assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 0), (signal.SIGTERM, 0), (signal.SIGHUP, 129)],
)
def test_serve_ends_with_the_code_of_the_signal(
    default_signals: None, number: int, code: int
) -> None:
    def stopped() -> None:
        os.kill(os.getpid(), number)
        signal.pause()

    @click.command(cls=Command)
    @click.pass_obj
    def serving(terminal: Terminal, /) -> None:
        Server.block(Mock(_watch=stopped))

    assert CliRunner().invoke(serving).exit_code == code


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_interrupt_hidden_by_another_exception_is_not_a_defect(
    default_signals: None, number: int, code: int
) -> None:
    before = signal.getsignal(number)

    @click.command(cls=Command)
    @click.pass_obj
    def importing(terminal: Terminal, /) -> None:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        except KeyboardInterrupt:
            raise ImportError("numpy was not imported completely") from None

    result = CliRunner().invoke(importing)
    assert result.exit_code == code
    assert result.stderr == "interrupted; no partly written files remain\n"
    assert signal.getsignal(number) == before


@pytest.mark.parametrize("ends", [False, True])
def test_interrupt_waits_for_the_import_of_numpy(
    default_signals: None, ends: bool
) -> None:
    """Its extension modules would print the traceback. A command that ends before the retry returns
    the code of the signal, and no signal is sent after its end.
    """
    module = "os.kill(os.getpid(), signal.SIGINT)\nimported.append(True)"
    imported: list[bool] = []

    @click.command(cls=Command)
    @click.pass_obj
    def importing(terminal: Terminal, /) -> None:
        names = {"__name__": "numpy.core", "imported": imported}
        exec(module, {**names, "os": os, "signal": signal})
        if not ends:
            signal.pause()

    result = CliRunner().invoke(importing)
    assert (result.exit_code, imported) == (130, [True])
    assert result.stderr == "interrupted; no partly written files remain\n"
    assert not [t for t in threading.enumerate() if isinstance(t, threading.Timer)]


def test_return_value_of_a_command_is_its_exit_code() -> None:
    @click.command(cls=Command)
    @click.pass_obj
    def returns_three(terminal: Terminal, /) -> int:
        return 3

    assert CliRunner().invoke(returns_three).exit_code == 3


@pytest.mark.parametrize(
    "function", ["builder.cli.importlib.import_module", "click.Group.make_context"]
)
def test_ctrl_c_before_a_command_begins_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    monkeypatch.setattr(function, Mock(side_effect=KeyboardInterrupt))
    result = CliRunner().invoke(main, ["doctor"])
    assert (result.exit_code, result.stderr) == (
        130,
        "interrupted; no partly written files remain\n",
    )
