"""`trt-build --help` is fast: its imports are limited and its time is measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from builder.cli import COMMANDS, main
from builder.interruption import MESSAGE
from tests.cli.conftest import PROGRAM, ROOT, environment, python

HEAVY = {
    "torch",
    "numpy",
    "tensorrt",
    "tensorrt_rtx",
    "rich",
    "yaml",
    "jsonschema",
    "polygraphy",
    "tritonclient",
    "google",
}


UNGROUPED = [name for name in COMMANDS if name != "farm"]
"""All commands except the group `farm`."""


def imported(*arguments: str) -> set[str]:
    """Top-level packages that the command line imports, without those of the interpreter."""
    code = (
        "import sys, json\nbare = set(sys.modules)\nfrom builder.cli import"
        f" main\nmain({list(arguments)!r}, standalone_mode=False)\nprint('\\n' +"
        " json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - bare})))"
    )
    done = python(code)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["repo", "--help"], ["verify", "--help"]]
)
def test_help_imports_only_click_and_builder(arguments: list[str]) -> None:
    modules = imported(*arguments)
    assert not modules & HEAVY
    assert {name for name in modules if name not in sys.stdlib_module_names} == {
        "builder",
        "click",
    }


def test_import_of_builder_imports_no_heavy_package() -> None:
    code = "import sys, builder, json; print(json.dumps(sorted(sys.modules)))"
    done = python(code)
    assert not {name.partition(".")[0] for name in json.loads(done.stdout)} & HEAVY


def test_ctrl_c_during_the_first_imports_shows_no_traceback(tmp_path: Path) -> None:
    interrupt = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "click.py").write_text(f"{interrupt}time.sleep(9)\n")
    code = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    code += "from builder.__main__ import main; main()"
    environ = environment(PYTHONPATH=f"{tmp_path}:{ROOT}")
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (130, f"{MESSAGE}\n")


def test_start_imports_little_before_ctrl_c_is_handled() -> None:
    code = "import __future__, re, signal, sys\nbare = set(sys.modules)\nimport builder.__main__\n"
    done = python(f"{code}print(*sorted(set(sys.modules) - bare))")
    assert done.stdout.split() == [
        "builder",
        "builder.__main__",
        "builder.interruption",
    ]


def test_help_takes_at_most_200_ms_more_than_the_interpreter() -> None:
    """The minimum CPU time of several runs, because other tests on the machine change wall time."""

    def seconds(command: list[str]) -> float:
        before = os.times()
        subprocess.run(command, env=environment(), capture_output=True, check=True)
        after = os.times()
        return (
            after.children_user
            + after.children_system
            - before.children_user
            - before.children_system
        )

    bare = min(seconds([sys.executable, "-c", "pass"]) for _ in range(3))
    assert min(seconds([*PROGRAM, "--help"]) for _ in range(3)) - bare < 0.2


def test_help_names_every_command_and_exit_code(run: Callable[..., Result]) -> None:
    text = run("--help").stdout
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert all(f"{code} " in text for code in (0, 1, 2, 3, 4))


@pytest.mark.parametrize("name", [*UNGROUPED, "farm status", "farm cancel"])
def test_every_command_has_help_and_json(run: Callable[..., Result], name: str) -> None:
    result = run(*name.split(), "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["rebo"], "Did you mean 'repo'?"),
        (["verfiy"], "Did you mean 'verify'?"),
        (["repo", ".", "--outt", "x"], "--out"),
        (["repo", ".", "--out", "x", "--precision", "fp61"], "fp16"),
        (["repo", "."], "--out"),
        (["verify", ".", "--serve", "--url", "x:1"], "remove --url"),
    ],
)
def test_typo_is_a_usage_error_with_a_suggestion(
    run: Callable[..., Result], arguments: list[str], words: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_main_is_the_console_script() -> None:
    assert main.name == "main"
