"""`trt-build history`: list the versions of the models in a repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import report, triton
from builder.cli import options
from builder.cli.command import command
from builder.cli.terminal import Terminal
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.triton import Entry

COLUMNS = (
    "model",
    "version",
    "state",
    "published",
    "source",
    "precision",
    "TensorRT",
    "abs error",
    "requests/s",
    "p99 ms",
)
NUMBERS = ("version", "abs error", "requests/s", "p99 ms")
DIGITS = 12
"""Number of shown digits of a source file's SHA-256."""


@command(
    "history",
    "trt-build history model_repository",
)
@click.argument("repository", type=options.PATH_OR_URL)
@options.only
def history_command(
    terminal: Terminal, /, repository: Path, only: tuple[str, ...]
) -> int:
    """Show the versions of the models of REPOSITORY, newest first.

    Triton serves the "current" version if a request names no version. It serves a "served" version
    if the request names it, and never a "kept" one. The error is the largest difference from the
    goldens. Requests per second and latency are those of `bench --record`, at the load with the
    most requests. Exit code 1: a file is damaged.
    """
    entries_by_model = {
        folder.name: triton.history.history(folder)
        for folder in triton.history.models(repository, only)
    }
    bench = _figures(terminal, repository, list(entries_by_model))
    data = []
    rows = []
    for name, entries in entries_by_model.items():
        measured = [(entry, bench[name].get(entry.identity, [])) for entry in entries]
        versions = [{**asdict(entry), "bench": figures} for entry, figures in measured]
        data.append({"name": name, "versions": versions})
        rows += [row(name, entry, figures) for entry, figures in measured]
    terminal.result(
        {"repository": repository, "models": data},
        lambda: terminal.table(COLUMNS, rows, numbers=NUMBERS),
    )
    return int(
        any(entry.damaged for entries in entries_by_model.values() for entry in entries)
    )


def _figures(
    terminal: Terminal, repository: Path, names: Sequence[str]
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The figures of each model by the identity of the version. A note if they cannot be read."""
    try:
        return {name: report.records.figures(repository, name) for name in names}
    except UsageError as error:
        terminal.note(f"no figures are shown: {error.where}: {error.message}")
        return {name: {} for name in names}


def row(name: str, entry: Entry, bench: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line of the table, with the figures of the fastest of the benchmarks."""
    error = (entry.parity or {}).get("absolute")
    best = max(
        bench, key=lambda figures: figures["requests_per_second"] or 0.0, default={}
    )
    rate = best.get("requests_per_second")
    latency = best.get("p99_ms")
    return [
        name,
        str(entry.number),
        entry.state + (f", DAMAGED: {entry.damaged}" if entry.damaged else ""),
        entry.published_at or "",
        (entry.source or "")[:DIGITS],
        entry.precision or "",
        str(entry.versions.get("tensorrt") or ""),
        "" if error is None else f"{error:.1e}",
        "" if rate is None else f"{rate:.1f}",
        "" if latency is None else f"{latency:.2f}",
    ]
