"""`trt-build history`: the versions of the models in a repository."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.cli import options
from builder.cli.command import Command
from builder.cli.terminal import Terminal

if TYPE_CHECKING:
    from builder.triton import Entry

COLUMNS = ("model", "version", "", "published", "source", "precision", "TensorRT", "abs error")
DIGITS = 12
"""Digits of a source file's SHA-256 that are shown."""


@click.command("history", cls=Command, short_help="Show the versions of published models.")
@click.argument("repository", type=options.PLACE)
@options.only
@click.pass_obj
def history_command(terminal: Terminal, /, repository: Path, only: tuple[str, ...]) -> int:
    """Show the versions that the models of REPOSITORY have, the newest first.

    "current" answers requests that name no version, "served" those that name it, "kept" none. The
    error is the largest of the published files against the goldens. Exit code 1 where a file is
    damaged.
    """
    from dataclasses import asdict

    from builder.triton import history

    found = {folder.name: history.history(folder) for folder in history.models(repository, only)}
    data = [
        {"name": name, "versions": [asdict(entry) for entry in entries]}
        for name, entries in found.items()
    ]
    rows = [row(name, entry) for name, entries in found.items() for entry in entries]
    terminal.result(
        {"repository": repository, "models": data},
        lambda: terminal.table(COLUMNS, rows, numbers=("version", "abs error")),
    )
    return int(any(entry.damaged for entries in found.values() for entry in entries))


def row(name: str, entry: Entry) -> list[str]:
    """One line of the table."""
    error = (entry.parity or {}).get("absolute")
    return [
        name,
        str(entry.number),
        entry.state + (f", DAMAGED: {entry.damaged}" if entry.damaged else ""),
        entry.published_at or "",
        (entry.source or "")[:DIGITS],
        entry.precision or "",
        str(entry.versions.get("tensorrt") or ""),
        "" if error is None else f"{error:.1e}",
    ]
