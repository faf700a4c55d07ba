"""Tables and progress for terminals, plain lines for pipes, and color only where it is enabled."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builder.cli.repo import _used_flavor
from builder.cli.terminal import Terminal
from builder.printable import counted
from tests.cli.conftest import PROGRAM, environment, python

SCRIPT = """
from builder.cli.terminal import Terminal
terminal = Terminal()
with terminal.progress() as progress:
    progress("net", "lower")
    progress("net", "[bold]build")
terminal.table(("model", "ms"), [["net", 1], ["[red]x", 22]], numbers=("ms",))
terminal.line("done", color="green")
"""


def terminal_output(script: str = SCRIPT, **more: str) -> str:
    """The output of a script when both streams are a terminal."""
    parent_end, child_end = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script],
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


def test_pipe_gets_plain_lines() -> None:
    done = python(SCRIPT)
    assert done.stdout == "model   ms\nnet      1\n[red]x  22\ndone\n"
    assert done.stderr == "net: lower\nnet: [bold]build\n"


def test_terminal_gets_color_and_a_live_line() -> None:
    seen = terminal_output()
    assert "\x1b[32mdone" in seen
    assert "net: [bold]build" in seen
    assert "\x1b[2K" in seen  # the live line is erased
    assert "[red]x" in seen


def test_narrow_terminal_gets_a_list_instead_of_split_words() -> None:
    table = "table(('model', 'requests'), [['net', 'unchanged'], ['other', '']])"
    script = f"from builder.cli.terminal import Terminal; Terminal().{table}"
    wide = terminal_output(script, NO_COLOR="1", COLUMNS="16")
    assert "net    unchanged" in wide
    narrow = terminal_output(script, NO_COLOR="1", COLUMNS="15")
    assert narrow.split("\r\n") == ["net", "  requests  unchanged", "other", ""]


def test_long_word_such_as_a_path_is_not_split() -> None:
    path = "/opt/" + "x" * 30
    table = f"table(('model', 'file'), [['net', {path!r}]])"
    script = f"from builder.cli.terminal import Terminal; Terminal().{table}"
    assert path in terminal_output(script, NO_COLOR="1", COLUMNS="30")


def test_wide_column_leaves_space_for_the_others() -> None:
    """The minimum width of a column in rich exceeds the terminal, and the rest is cut off."""
    row = ["a" * 24, "b " * 30, "c " * 8, "d " * 6 + "d" * 8]
    table = f"table(('w', 'x', 'y', 'z'), [{row}])"
    script = f"from builder.cli.terminal import Terminal; Terminal().{table}"
    seen = terminal_output(script, NO_COLOR="1", COLUMNS="44")
    assert [seen.count(letter) for letter in "abcd"] == [24, 30, 8, 14]
    assert "d" * 8 in seen


def test_no_color_variable_disables_color() -> None:
    seen = terminal_output(NO_COLOR="1")
    assert "done" in seen
    assert not re.search(r"\x1b\[[0-9;]*(3|4|9)\d", seen), "a color"


def test_dumb_terminal_gets_plain_lines() -> None:
    assert "\x1b" not in terminal_output(TERM="dumb")


def test_spinner_has_characters_of_the_encoding() -> None:
    assert "\\u28" not in terminal_output(PYTHONIOENCODING="ascii")
    assert "\u280b" in terminal_output(PYTHONIOENCODING="utf-8")


def test_json_replaces_the_table_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal(as_json=True).result({"a": 1}, lambda: print("table"))
    Terminal(as_json=False).result({"a": 1}, lambda: print("table"))
    assert capsys.readouterr().out == '{\n  "a": 1\n}\ntable\n'


def test_quiet_leaves_out_hints(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (True, False):
        assert _used_flavor(Terminal(quiet=quiet), "auto")["version"]
        assert (capsys.readouterr().err == "") is quiet


def slow(*cases: tuple[str, ...]) -> list[Any]:
    return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


def _run(line: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash; the result has the exit code of its first command."""
    command = " ".join(map(shlex.quote, PROGRAM))
    script = f"{line.replace('trt-build', command)}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(
        ["bash", "-c", script],
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        *[("doctor", ""), ("doctor", "1"), ("repo --help", "")],
        *slow(("--help", ""), ("--help", "1"), ("repo --help", "1")),
    ],
)
def test_closed_pipe_ends_the_command_without_a_message(
    command: str, unbuffered: str
) -> None:
    """The exit code is that of SIGPIPE; 1 would mean a failed model."""
    process = _run(f"trt-build {command} | true", PYTHONUNBUFFERED=unbuffered)
    assert (process.returncode, process.stderr) == (141, "")


@pytest.mark.parametrize("unbuffered", ["1", pytest.param("", marks=pytest.mark.slow)])
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_command_works_with_closed_streams(closed: str, unbuffered: str) -> None:
    process = _run(f"trt-build doctor {closed}", PYTHONUNBUFFERED=unbuffered)
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.slow
def test_closed_streams_are_no_pipes_of_other_processes(small: Path) -> None:
    process = _run(
        f"trt-build lower {small / 'small.pt'} --out {small / 'out'} <&- >&-"
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert (small / "out" / "lowered.pt").exists()


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [
        *[("doctor", ""), ("doctor --json", "1"), ("farm --help", "")],
        *slow(("doctor", "1"), ("doctor --json", ""), ("farm --help", "1")),
    ],
)
def test_full_disk_exits_with_4(command: str, unbuffered: str) -> None:
    process = _run(f"trt-build {command} >/dev/full", PYTHONUNBUFFERED=unbuffered)
    error = "error: No space left on device\n  fix:   free disk space\n"
    assert (process.returncode, process.stderr) == (4, error)


def test_counts_have_their_noun() -> None:
    assert counted(1, "branch", "branches") == "1 branch"
    assert counted(0, "branch", "branches") == "0 branches"
    assert counted(2, "node") == "2 nodes"
