"""`trt-build promote`: copy published models from one repository to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder import report, repository, store, triton
from builder.cli import options
from builder.cli.command import command
from builder.cli.terminal import Terminal

if TYPE_CHECKING:
    from builder.triton import history


@command(
    "promote",
    "trt-build promote staging production --only net",
)
@click.argument("source", type=options.PATH_OR_URL, metavar="FROM")
@click.argument("target", type=options.CHANGED_PATH_OR_URL, metavar="TO")
@options.only
@options.accept_incompatible
@options.sign
@options.write_env
def promote_command(
    terminal: Terminal,
    /,
    source: Path,
    target: Path,
    only: tuple[str, ...],
    accept_incompatible: bool,
    sign: Path | None,
    write_env: bool,
) -> None:
    """Publish the current version of each model of the repository FROM into the repository TO, byte
    for byte. TO is created if missing.

    Figures that `verify --record` and `bench --record` kept for these versions are copied, too.
    The models are published one by one, each atomically. The command ends at the first model that
    is refused.
    """
    folders = triton.history.models(source, only)
    _prepare(source, target)
    with triton.signatures.signing_with(sign):
        promotions = [
            triton.history.promote(folder, target, accept=accept_incompatible)
            for folder in folders
        ]
    names = [folder.name for folder in folders]
    terminal.note_if_any(report.records.carry(source, target, names))
    _note_unsigned(terminal, folders, target)
    if write_env:
        options.write_env_file(terminal, target)
    options.note_incompatible(terminal, promotions)
    data = {"from": source, "to": target, "models": list(map(asdict, promotions))}
    terminal.result(data, lambda: show(terminal, promotions))


def _prepare(source: Path, target: Path) -> None:
    """Check that models can be published into `target`, and remove what interrupted commands left
    there.
    """
    repository.preflight.refuse_nested(source, target)
    repository.preflight.check(target)
    store.clean_up(target)


def _note_unsigned(terminal: Terminal, folders: Sequence[Path], target: Path) -> None:
    """Report the models that are signed in FROM and not signed in TO."""
    signed = [
        target / folder.name
        for folder in folders
        if triton.signatures.is_signed(folder)
    ]
    options.note_unsigned(terminal, signed)


def show(terminal: Terminal, promotions: Sequence[history.Promotion]) -> None:
    """Print one row for each model."""
    rows = [
        [promotion.name, str(promotion.number), promotion.state]
        for promotion in promotions
    ]
    terminal.table(("model", "version", "result"), rows, numbers=("version",))
