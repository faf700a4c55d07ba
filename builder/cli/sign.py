"""`trt-build sign`: sign the models of a repository as they are."""

from __future__ import annotations

from pathlib import Path

import click

from builder import store, triton
from builder.cli import options
from builder.cli.command import command
from builder.cli.terminal import Terminal


@command(
    "sign",
    "trt-build sign model_repository --key sign.key",
)
@click.argument("repository", type=options.PATH)
@options.path(
    "--key",
    required=True,
    metavar="PRIVATE_KEY",
    help="An elliptic-curve key in PEM form.",
)
@options.only
def sign_command(
    terminal: Terminal, /, repository: Path, key: Path, only: tuple[str, ...]
) -> None:
    """Sign every model of REPOSITORY that has no valid signature of this key.

    The files are signed as they are now: verify them first. `trt-build repo --sign` signs models as
    they are published. TRT_BUILD_SIGN_PASSWORD has the password of an encrypted key.
    """
    store.clean_up(repository)
    if only:
        triton.history.models(repository, only)
    store.published.model_names(repository)
    with triton.signatures.signing_with(key):
        signed = triton.signatures.sign_missing(repository, key, only)
    data = {"repository": repository, "signed": signed}
    names = ", ".join(signed) or "nothing: every signature holds"
    terminal.result(data, lambda: terminal.line(f"signed: {names}"))
