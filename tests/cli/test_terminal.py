"""Tables and progress for people, plain lines for pipes, color only where it is welcome."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from builder.cli.terminal import Terminal
from tests.cli.conftest import PROGRAM, environment

Shell = Callable[[str], subprocess.CompletedProcess[str]]
SCRIPT = """
from builder.cli.terminal import Terminal
terminal = Terminal()
with terminal.progress() as progress:
    progress("net", "lower")
    progress("net", "[bold]build")
terminal.table(("model", "ms"), [["net", 1], ["[red]x", 22]], numbers=("ms",))
terminal.line("done", color="green")
"""


def on_a_terminal(**more: str) -> str:
    """What the script writes when both streams are a terminal."""
    parent_end, child_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        env=environment(**{"TERM": "xterm", **more}),
        stdout=child_end,
        stderr=child_end,
    )
    os.close(child_end)
    seen = b""
    while True:
        try:
            chunk = os.read(parent_end, 4096)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    os.close(parent_end)
    assert process.wait() == 0
    return seen.decode()


def test_a_pipe_gets_plain_lines() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "model   ms\nnet      1\n[red]x  22\ndone\n"
    assert done.stderr == "net: lower\nnet: [bold]build\n"


def test_a_terminal_gets_color_and_a_live_line() -> None:
    seen = on_a_terminal()
    assert "\x1b[32mdone" in seen
    assert "net: [bold]build" in seen
    assert "\x1b[2K" in seen  # the live line is erased
    assert "[red]x" in seen


def test_no_color_is_honoured_on_a_terminal() -> None:
    seen = on_a_terminal(NO_COLOR="1")
    assert "done" in seen
    assert not re.search(r"\x1b\[[0-9;]*(3|4|9)\d", seen), "a color"


def test_a_dumb_terminal_gets_plain_lines() -> None:
    assert "\x1b" not in on_a_terminal(TERM="dumb")


def test_json_is_all_that_stands_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal(as_json=True).result({"a": 1}, lambda: print("table"))
    Terminal(as_json=False).result({"a": 1}, lambda: print("table"))
    assert capsys.readouterr().out == '{\n  "a": 1\n}\ntable\n'


@pytest.fixture(params=["", "1"], ids=["buffered", "unbuffered"])
def shell(request: pytest.FixtureRequest) -> Shell:
    """Runs a line of bash: the exit code of its first command, and what stands on standard error.
    Python writes when its buffer is full or as it ends, unless it is told not to buffer.
    """
    return partial(_run, PYTHONUNBUFFERED=request.param)


def _run(line: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = " ".join(map(shlex.quote, [*PROGRAM, "doctor"]))
    script = f"{line.replace('doctor', command)}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(
        ["bash", "-c", script],
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_reader_that_has_enough_ends_the_command_silently(shell: Shell) -> None:
    """As a signal would: 1 is a model that failed."""
    done = shell("doctor | true")
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("line", ["doctor >&-", "doctor 2>&-", "doctor >&- 2>&-"])
def test_streams_may_be_closed(shell: Shell, line: str) -> None:
    done = shell(line)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("line", ["doctor >/dev/full", "doctor --json >/dev/full"])
def test_full_disk_of_the_output_is_reported(shell: Shell, line: str) -> None:
    done = shell(line)
    assert (done.returncode, done.stderr) == (4, "error: No space left on device\n")
