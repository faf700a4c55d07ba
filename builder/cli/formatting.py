"""The layout of `--help` on narrow terminals, and the examples of commands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

NARROW = 60
"""Columns below which the text of an option begins on a line of its own."""


class Formatter(click.HelpFormatter):
    """click's formatter, which otherwise leaves 8 columns for the text of a 40-column terminal."""

    def write_dl(
        self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2
    ) -> None:
        """Write the terms and their texts in two columns."""
        most = self.width // 4 if self.width < NARROW else col_max
        super().write_dl(rows, most, col_spacing)


class Context(click.Context):
    """A context whose help has the layout of `Formatter`."""

    formatter_class = Formatter


def epilog(examples: Sequence[str]) -> str | None:
    """The examples as the last paragraph of a command's help."""
    if not examples:
        return None
    title = "Example" if len(examples) == 1 else "Examples"
    return "\n".join(("\b", f"{title}:", *(f"  {line}" for line in examples)))
