"""`trt-build --help` answers at once: what it imports is pinned, and timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest
from click.testing import Result

from builder.cli import COMMANDS, main
from tests.cli.conftest import PROGRAM, environment

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


FLAT = [name for name in COMMANDS if name != "farm"]
"""All commands but for the group."""


def imported(*arguments: str) -> set[str]:
    """Top-level packages that the command line has imported when it is done, beyond the
    interpreter's own.
    """
    code = (
        "import sys, json\nbare = set(sys.modules)\nfrom builder.cli import"
        f" main\nmain({list(arguments)!r}, standalone_mode=False)\nprint('\\n' +"
        " json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - bare})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["repo", "--help"], ["verify", "--help"]]
)
def test_help_imports_click_and_us_alone(arguments: list[str]) -> None:
    found = imported(*arguments)
    assert not found & HEAVY
    assert {name for name in found if name not in sys.stdlib_module_names} == {
        "builder",
        "click",
    }


def test_importing_builder_is_light() -> None:
    code = "import sys, builder, json; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {name.partition(".")[0] for name in json.loads(done.stdout)} & HEAVY


def test_help_takes_a_fifth_of_a_second_beyond_the_interpreter() -> None:
    """Of a processor, and the best of several: on a machine that runs other tests, the clock would
    measure those.
    """

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

    bare = min(seconds([sys.executable, "-c", "pass"]) for _ in range(5))
    assert min(seconds([*PROGRAM, "--help"]) for _ in range(5)) - bare < 0.2


def test_help_names_every_command_and_exit_code(run: Callable[..., Result]) -> None:
    text = run("--help").stdout
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert all(f"{code} " in text for code in (0, 1, 2, 3, 4))


@pytest.mark.parametrize("name", [*FLAT, "farm status", "farm cancel"])
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
def test_a_typo_is_usage_and_names_what_was_meant(
    run: Callable[..., Result], arguments: list[str], words: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr


def test_main_is_the_console_script() -> None:
    assert main.name == "main"
