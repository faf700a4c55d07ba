"""`trt-build repo --farm FILE`: build the repositories of all targets on a Ray cluster, with one
table over all machines while their tasks run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import farm, store
from builder.cli import build_options, options
from builder.cli.repo import common_exit_code
from builder.cli.terminal import Terminal, command_line, is_terminal
from builder.errors import UsageError
from builder.printable import counted, printable
from builder.progress import FINISHED, Progress

if TYPE_CHECKING:
    from builder.farm import Farm, Outcome
    from builder.repository import Settings

COLUMNS = ("model", "target", "result", "published", "attempts", "node", "s")
NOT_SENT = {
    "inputs": "--input",
    "sample": "--sample",
    "plugins": "--plugin",
    "targets": "--target",
    "timing_cache": "--timing-cache",
    "search_precision": "--search-precision",
    "edits": "--keep-edits or --overwrite-edits",
    "sbom": "--sbom",
    "record": "--record",
    "write_env": "--write-env",
    "jobs": "--jobs",
}
"""Options of `repo` that a farm does not support, by parameter."""
MOST_ROWS = 20
"""Maximum number of running tasks in the live table."""
STARTED = "started on "
"""How the phase of a task begins when a node has started it. The node follows."""


def refuse(context: click.Context) -> None:
    """Raise one UsageError for all options that a farm does not support."""
    params = context.params
    refused = [text for name, text in NOT_SENT.items() if params.get(name)]
    if not params["isolate"]:
        refused.append("--no-isolate")
    if params.get("no_store"):
        refused.append("--no-store")
    if params["log_level"] == "graph":
        refused.append("--log-level graph")
    if refused:
        raise UsageError(
            f"with --farm there is no {', '.join(refused)}",
            fix="remove it; docs/farm.md names the corresponding key of a farm file",
        )


def run(context: click.Context) -> int:
    """Build, publish and show the outcomes.

    Returns the exit code. Raises the errors of build_on_farm.
    """
    refuse(context)
    terminal: Terminal = context.obj
    params = context.params
    farm_config = farm.read(params["farm_file"])
    options.note_unread(terminal, params["models"])
    outcomes, dashboard = _built(terminal, params, farm_config)
    code = exit_code(outcomes)
    for target in sorted({outcome.target for outcome in outcomes}):
        options.without_source(terminal, params["models"], params["out"] / target)
    data = {
        "repository": params["out"],
        "ok": code == 0,
        "dashboard": dashboard,
        "events": farm.folder_of(params["out"]) / "events.jsonl",
        "results": [as_dict(outcome) for outcome in outcomes],
    }
    terminal.result(data, lambda: show(terminal, outcomes, params["out"]))
    return code


def _built(
    terminal: Terminal, params: dict[str, Any], farm_config: Farm
) -> tuple[list[Outcome], str]:
    """The outcomes, and the URL of Ray's dashboard; it is empty where there is none."""
    dashboards: list[str] = []

    def connected(url: str) -> None:
        dashboards.append(url)
        if url:
            terminal.hint(f"Ray's dashboard: {url}")

    with task_progress(terminal) as progress:
        outcomes = farm.build_on_farm(
            params["models"],
            params["out"],
            farm_config,
            _settings(params, farm_config),
            rebuild=params["rebuild"],
            require_all=params["require_all"],
            require_sandbox=params["require_sandbox"],
            progress=progress,
            connected=connected,
        )
    return outcomes, "".join(dashboards)


def _settings(params: dict[str, Any], farm_config: Farm) -> Settings:
    from builder.repository import Settings

    options = build_options.take(dict(params))
    names = (
        "only",
        "precision",
        "flavor",
        "serve_as",
        "state",
        "layout",
        "torch_steps",
    )
    shared = {name: params[name] for name in (*names, "accept_incompatible", "sign")}
    return Settings(
        **shared, options=options, store=_store(params["store"], farm_config)
    )


def _store(requested: str | None, farm_config: Farm) -> str | None:
    """The store that all machines use.

    The local store is allowed only if no other machine builds.
    """
    url = requested or farm_config.store or os.environ.get("TRT_BUILD_STORE")
    return url or (store.default_url() if farm_config.is_local else None)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 without failures, the exit code if all failures share one, else 1. A combination that
    `--require-all` kept from publication has no exit code.
    """
    return common_exit_code(
        outcome.error.exit_code for outcome in outcomes if outcome.error is not None
    )


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """The result as JSON data."""
    return {
        **vars(outcome),
        "ok": outcome.ok,
        "error": outcome.error.as_dict() if outcome.error else None,
    }


def show(terminal: Terminal, outcomes: Sequence[Outcome], out: Path) -> None:
    """Print the table, the reasons of exclusions and failures, and the next command."""
    terminal.table(
        COLUMNS, [_row(outcome) for outcome in outcomes], numbers=("attempts", "s")
    )
    for outcome in outcomes:
        name = f"{outcome.model} for {outcome.target}"
        if outcome.state == "excluded":
            terminal.note(f"{name}: excluded: {outcome.because}")
        for warning in (outcome.result or {}).get("warnings", ()):
            terminal.note(f"{name}: warning: {warning}")
        if outcome.error:
            terminal.trace(name, outcome.error.traceback)
            if not terminal.as_json:
                terminal.failure(f"{name}: {outcome.error}", None)
    counts = Counter(outcome.target for outcome in outcomes if outcome.published)
    failed = sum(outcome.error is not None for outcome in outcomes)
    if failed and not counts:
        terminal.line(f"nothing is published: {failed} of {len(outcomes)} failed")
    for target, count in sorted(counts.items()):
        terminal.line(f"{counted(count, 'model')} in {out / target}")
    folders = [out / target for target in sorted(counts)]
    if len(folders) > 1 and not terminal.quiet and any(map(has_plans, folders)):
        merge = command_line("trt-build", "merge", *folders, "--out", "MERGED")
        terminal.line(f"next: {merge}")


def has_plans(repository: Path) -> bool:
    """Whether Triton itself loads a plan of the repository. Only such models can be merged."""
    folders = store.published.recorded_folders(repository)
    records = (
        store.published.read(folder / store.published.SIDECAR) for folder in folders
    )
    return any(record.get("serve_as") == "tensorrt_plan" for record in records)


def _row(outcome: Outcome) -> list[str]:
    result = "FAILED" if outcome.error else outcome.state
    attempts = str(outcome.attempts) if outcome.attempts else ""
    seconds = f"{outcome.seconds:.1f}" if outcome.attempts else ""
    return [
        outcome.model,
        outcome.target,
        result,
        outcome.published,
        attempts,
        outcome.node,
        seconds,
    ]


class Running:
    """The running tasks: node, phase and start time by name. `finished` has the lines of finished
    tasks until they are printed.
    """

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, str, float]] = {}
        self.finished: list[str] = []

    def __call__(self, task: str, phase: str) -> None:
        """Record that a phase of a task begins (the signature of Progress)."""
        if phase.startswith(FINISHED):
            self.rows.pop(task, None)
            self.finished.append(printable(f"{task}: {phase}"))
        elif phase.startswith(STARTED):
            node = printable(phase.removeprefix(STARTED))
            self.rows[task] = (node, "starting", time.monotonic())
        elif task in self.rows:
            node, _, began = self.rows[task]
            self.rows[task] = (node, printable(phase), began)

    def table(self) -> Any:
        """The tasks as a rich table, longest running first."""
        from rich.table import Table
        from rich.text import Text

        rows_table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("task", "node", "phase", "s"):
            rows_table.add_column(name, justify="right" if name == "s" else "left")
        now = time.monotonic()
        for task, (node, phase, began) in [*self.rows.items()][:MOST_ROWS]:
            cells = (printable(task), node, phase, f"{now - began:.0f}")
            rows_table.add_row(*map(Text, cells))
        if len(self.rows) > MOST_ROWS:
            rows_table.add_row(f"and {len(self.rows) - MOST_ROWS} more")
        return rows_table


@contextlib.contextmanager
def task_progress(terminal: Terminal) -> Iterator[Progress]:
    """A callback for the tasks of a farm: a live table on a terminal, else a line for each phase;
    on standard error.
    """
    if terminal.quiet or not is_terminal(sys.stderr):
        with terminal.progress() as plain:
            yield plain
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    running = Running()
    console = Console(stderr=True)
    with Live(console=console, get_renderable=running.table, transient=True):

        def show(task: str, phase: str) -> None:
            running(task, phase)
            while running.finished:
                console.print(Text(running.finished.pop(0)))

        yield show
