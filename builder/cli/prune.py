"""`trt-build prune`: remove old versions of models."""

from __future__ import annotations

from pathlib import Path

import click

from builder import report, store, triton
from builder.cli import options
from builder.cli.command import command
from builder.cli.terminal import Terminal


@command(
    "prune",
    "trt-build prune model_repository --keep 3",
)
@click.argument("repository", type=options.CHANGED_PATH_OR_URL)
@options.count(
    "--keep",
    required=True,
    metavar="N",
    help="Number of versions to keep, including the current one.",
)
@options.only
@options.sign
def prune_command(
    terminal: Terminal,
    /,
    repository: Path,
    keep: int,
    only: tuple[str, ...],
    sign: Path | None,
) -> None:
    """Keep the N newest versions of each model in REPOSITORY, and remove the others. The current
    version is always kept. The figures of removed versions are removed. Steps of a removed ensemble
    version are removed at a later publication.
    """
    store.clean_up(repository)
    folders = triton.history.models(repository, only)
    was_signed = [folder for folder in folders if triton.signatures.is_signed(folder)]
    with triton.signatures.signing_with(sign):
        removed = {
            folder.name: triton.history.prune(folder, keep) for folder in folders
        }
    changed = [name for name, numbers in removed.items() if numbers]
    terminal.note_if_any(report.records.forget(repository, changed))
    options.note_unsigned(terminal, was_signed)
    data = [{"name": name, "removed": numbers} for name, numbers in removed.items()]
    terminal.result(
        {"repository": repository, "models": data}, lambda: show(terminal, removed)
    )


def show(
    terminal: Terminal, removed: dict[str, list[int]], title: str = "removed"
) -> None:
    """Print one row for each model."""
    rows = []
    for name, numbers in removed.items():
        rows.append([name, ", ".join(map(str, numbers)) or "none"])
    terminal.table(("model", title), rows)
