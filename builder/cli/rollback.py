"""`trt-build rollback`: serve an earlier version of a model again."""

from __future__ import annotations

from pathlib import Path

import click

from builder import store, triton
from builder.cli import options
from builder.cli.command import command
from builder.cli.terminal import Terminal


@command(
    "rollback",
    "trt-build rollback model_repository net --to 3",
)
@click.argument("repository", type=options.CHANGED_PATH_OR_URL)
@click.argument("model")
@options.count(
    "--to",
    metavar="N",
    help="The version. [default: the newest before the current one]",
)
@options.accept_incompatible
@options.sign
@options.write_env
def rollback_command(
    terminal: Terminal,
    /,
    repository: Path,
    model: str,
    to: int | None,
    accept_incompatible: bool,
    sign: Path | None,
    write_env: bool,
) -> None:
    """Serve version N of MODEL in REPOSITORY again, by one rename. The replaced version is kept,
    and `trt-build repo` does not publish it again automatically. If version N is already served,
    nothing changes.

    The manifest must enable kept versions: versions: {keep: 3}. A server in poll mode detects the
    change. In explicit mode the model must be loaded again.
    """
    store.clean_up(repository)
    (folder,) = triton.history.models(repository, [model])
    was_signed = triton.signatures.is_signed(folder)
    with triton.signatures.signing_with(sign):
        before, now = triton.history.rollback(folder, to, accept=accept_incompatible)
    options.note_unsigned(terminal, [folder] if was_signed else [])
    if write_env:
        options.write_env_file(terminal, repository)
    if before == now:
        state = "unchanged"
        served = "already served, unchanged"
    else:
        state = "rolled back"
        served = f"served instead of version {before}"
    data = {"repository": repository, "model": model, "from": before, "to": now}
    data["state"] = state
    terminal.result(data, lambda: terminal.line(f"{model}: version {now} is {served}"))
