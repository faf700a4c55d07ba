"""Command lines of help texts and pages, as click reads them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from builder.cli import main

CONTEXT = click.Context(main)


def command_of(words: Sequence[str]) -> tuple[click.Command, list[str]]:
    """The command that the words after `trt-build` name, and the words after its name.

    Raises click.UsageError if there is no such command.
    """
    command: click.Command = main
    arguments = list(words)
    while isinstance(command, click.Group) and arguments:
        _, subcommand, arguments = command.resolve_command(CONTEXT, arguments)
        assert subcommand is not None
        command = subcommand
    return command, arguments


def parse(words: Sequence[str]) -> None:
    """Raise click.UsageError unless the words after `trt-build` are a valid command line."""
    command, arguments = command_of(words)
    command.make_context(command.name, arguments).close()
