"""The table of running tasks, and the output of a finished run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from builder.cli.repo_farm import MOST_ROWS, Running, show
from builder.cli.terminal import Terminal
from builder.farm import Outcome
from builder.triton import publish
from tests.triton.artifacts import TENSORRT, scorer


def visible_rows(running: Running) -> list[list[str]]:
    """The rows of the table as words, without the column of seconds."""
    console = Console(file=io.StringIO(), width=100)
    console.print(running.table())
    assert isinstance(console.file, io.StringIO)
    return [line.split()[:3] for line in console.file.getvalue().splitlines()]


def test_table_lists_running_tasks_with_node_and_phase() -> None:
    running = Running()
    for task in ("a@x", "b@x"):
        running(task, "started on 10.0.0.2")
    running("b@x", "build")
    running("a@x", "finished: built on 10.0.0.2 (1 of 2)")
    assert visible_rows(running) == [
        ["task", "node", "phase"],
        ["b@x", "10.0.0.2", "build"],
    ]
    assert running.finished == ["a@x: finished: built on 10.0.0.2 (1 of 2)"]


def test_table_counts_omitted_tasks() -> None:
    running = Running()
    for number in range(MOST_ROWS + 3):
        running(f"task{number}", "started on here")
    assert len(visible_rows(running)) == MOST_ROWS + 2
    assert visible_rows(running)[-1] == ["and", "3", "more"]


@pytest.mark.parametrize(
    ("model", "advised"),
    [
        ({"serve_as": "tensorrt_plan", "facts": TENSORRT, "plan": b"plan"}, True),
        ({"serve_as": "python"}, False),
    ],
)
def test_merge_is_advised_only_for_plans_that_triton_loads(
    model: dict[str, Any],
    advised: bool,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    targets = ("ada", "hopper")
    for target in targets:
        publish(scorer(**model), tmp_path / target)
    outcomes = [Outcome("scorer", target, published="published") for target in targets]
    show(Terminal(), outcomes, tmp_path)
    assert ("next: trt-build merge" in capsys.readouterr().out) == advised
