"""`trt-build farm status` and `trt-build farm cancel`: show or cancel runs on a Ray cluster."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from builder import farm
from builder.cli import options
from builder.cli.command import command
from builder.cli.formatting import Context
from builder.cli.terminal import Terminal

farm_file_argument = click.argument("farm_file", type=options.PATH, metavar="FARM.yaml")
COLUMNS = ("run", "repository", "by", "waiting", "running", "done", "failed", "s left")


@click.group("farm")
def farm_command() -> None:
    """Show or cancel what `trt-build repo --farm` builds on a Ray cluster."""


farm_command.context_class = Context


@command(
    "status",
    "trt-build farm status farm.yaml",
    short_help="Show nodes, targets and runs.",
)
@farm_file_argument
def status_command(terminal: Terminal, /, farm_file: Path) -> None:
    """Show which nodes can build for each target of FARM.yaml, and the runs of `repo --farm` on its
    cluster.
    """
    farm_config = farm.read(farm_file)
    with farm.cluster.connected(farm_config, running=True) as library:
        alive = farm.cluster.nodes(library)
        targets = []
        for target in farm_config.targets:
            demand = farm.cluster.demand(target)
            nodes = sum(farm.cluster.fits(node, demand) for node in alive)
            targets.append({"target": target.name, "takes": demand, "nodes": nodes})
        runs = [about for about, _ in farm.board.runs(library)]
        dashboard = farm.cluster.dashboard(library)
    data = {
        "nodes": len(alive),
        "dashboard": dashboard,
        "targets": targets,
        "runs": runs,
    }
    terminal.result(data, lambda: _show(terminal, data))


@command(
    "cancel",
    "trt-build farm cancel farm.yaml",
    short_help="Cancel the runs on a cluster.",
)
@farm_file_argument
def cancel_command(terminal: Terminal, /, farm_file: Path) -> None:
    """Cancel every run of `trt-build repo --farm` on the cluster of FARM.yaml. Such a run publishes
    nothing and ends with exit code 130. Built plans stay in the store.
    """
    with farm.cluster.connected(farm.read(farm_file), running=True) as library:
        names = farm.board.cancel(library)
    text = f"canceled: {', '.join(names)}" if names else "no run to cancel"
    terminal.result({"canceled": names}, lambda: terminal.line(text))


farm_command.add_command(status_command)
farm_command.add_command(cancel_command)


def _show(terminal: Terminal, data: dict[str, Any]) -> None:
    rows = [_target_row(target) for target in data["targets"]]
    terminal.table(("target", "takes", "nodes"), rows, numbers=("nodes",))
    if data["dashboard"]:
        terminal.line(f"Ray's dashboard: {data['dashboard']}")
    terminal.line()
    runs = [_run_row(run) for run in data["runs"]]
    if runs:
        terminal.table(COLUMNS, runs, numbers=COLUMNS[3:])
    else:
        terminal.line("no run")


def _target_row(target: dict[str, Any]) -> list[str]:
    takes = ", ".join(f"{name}: {amount:g}" for name, amount in target["takes"].items())
    return [target["target"], takes, str(target["nodes"])]


def _run_row(run: dict[str, Any]) -> list[str]:
    age = time.time() - run["since"]
    counts = (run.get(name, 0) for name in ("waiting", "running", "done", "failed"))
    seconds_left = ""
    if run.get("seconds_left") is not None:
        seconds_left = f"{run['seconds_left']:.0f}"
    return [
        run["name"],
        run["repository"],
        f"{run['user']}@{run['host']}, {age:.0f} s ago",
        *map(str, counts),
        seconds_left,
    ]
