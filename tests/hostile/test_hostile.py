"""Short runs of hostile inputs, and the counts of the last full run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile import __main__ as program
from tests.hostile import page
from tests.hostile.counts import ZERO, Case, Counts, attempt_all, watch

HERE = "tests.hostile.test_hostile"


def test_page_is_current() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), (
        "run: python docs/generate.py security"
    )


def test_last_full_run_has_no_forbidden_outcomes() -> None:
    data = json.loads(page.COUNTS.read_text(encoding="utf-8"))
    assert {name: data[name]["cases"] for name in data} == program.FULL
    for name, counts in data.items():
        assert {key: counts[key] for key in ZERO} == dict.fromkeys(ZERO, 0), name
        assert counts["bad"] == []


def behave(how: str, path: str, report: object) -> tuple[str, str]:
    if how == "defect":
        return "exit_70", "a defect"
    if how == "write":
        Path(path).write_text("x")
    if how == "hang":
        while True:
            pass
    return "refused", ""


@pytest.mark.slow
def test_forbidden_outcomes_are_counted(tmp_path: Path) -> None:
    """A defect, a hang and a written file count as one each."""
    counts = Counts()
    cases = [
        Case(how, (how, str(tmp_path / "file")))
        for how in ("write", "hang", "defect", "refuse")
    ]

    def act() -> None:
        attempt_all(
            f"{HERE}:behave",
            cases,
            counts,
            modules=(HERE,),
            sandbox=None,
            stage_seconds=3,
            jobs=1,
        )

    watch(tmp_path, counts, "seeds", act)
    outcomes = {name: count for name, count in counts.outcomes.items() if count}
    assert outcomes == {
        "refused": 2,
        "ended_by_limit": 1,
        "exit_70": 1,
        "files_written": 1,
    }
    assert counts.cases == 4
    assert not counts.passed


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["archives", "manifests", "crafted", "damaged"])
def test_short_run_of_each_suite_passes(suite: str) -> None:
    command = [
        sys.executable,
        "-m",
        "tests.hostile",
        "--seconds",
        "5",
        "--suite",
        suite,
    ]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert json.loads(completed.stdout)[suite]["cases"] >= 4
