"""`trt-build remove`: remove published models."""

from __future__ import annotations

from pathlib import Path

import click

from builder import report, store, triton
from builder.cli import options, prune
from builder.cli.command import command
from builder.cli.terminal import Terminal


@command(
    "remove",
    "trt-build remove model_repository net",
)
@click.argument("repository", type=options.CHANGED_PATH_OR_URL)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
def remove_command(
    terminal: Terminal, /, repository: Path, models: tuple[str, ...]
) -> None:
    """Remove each MODEL from REPOSITORY with all of its versions, its figures and the steps of an
    ensemble. Each model is removed whole or not at all.

    A removed model cannot be rolled back. `trt-build repo` builds it again from its model file. A
    server in explicit mode serves it until you unload it.
    """
    names = list(dict.fromkeys(models))
    store.clean_up(repository)
    triton.history.require_removable(repository, names)
    removed = {name: triton.history.remove(repository / name) for name in names}
    terminal.note_if_any(report.records.forget(repository, names))
    data = [{"name": name, "removed": numbers} for name, numbers in removed.items()]
    terminal.result(
        {"repository": repository, "models": data},
        lambda: prune.show(terminal, removed, "removed versions"),
    )
