"""The one place that prints: tables and progress for a terminal, plain lines otherwise, JSON where
it was asked for.

Results go to standard output; progress, notes and errors to standard error. rich is imported only
where it shows.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO

import click

from builder.printable import printable

Progress = Callable[[str, str], None]
"""(what is worked on, the phase that begins). The line of a phase that begins with FINISHED stays
on the terminal.
"""
FINISHED = "finished"


def is_terminal(stream: TextIO | None) -> bool:
    """Whether a person reads the stream and the terminal can do more than lines; a closed one is
    None.
    """
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def may_color(stream: TextIO | None) -> bool:
    """Whether color is welcome: on a terminal, unless NO_COLOR is set to anything
    (https://no-color.org).
    """
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


@contextmanager
def only_json() -> Iterator[TextIO | None]:
    """Standard output for one JSON document: during the block all other output, of models and of
    libraries too, goes to standard error.
    """
    real = sys.stdout
    sys.stdout = sys.stderr
    try:
        with contextlib.ExitStack() as stack:
            yield stack.enter_context(_redirected(real)) if _is_file_1(real) else real
    finally:
        sys.stdout = real


def _is_file_1(stream: TextIO | None) -> bool:
    """Whether the stream is the process's own standard output, not that of a test."""
    with contextlib.suppress(OSError, ValueError):
        return stream is not None and stream.fileno() == 1
    return False


@contextmanager
def _redirected(real: TextIO) -> Iterator[TextIO]:
    """The process's standard output as a new stream, while descriptor 1 is standard error."""
    real.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(own), "w", encoding=real.encoding, errors=real.errors) as stream:
            yield stream
    finally:
        os.dup2(own, 1)
        os.close(own)


class Terminal:
    """Where a command's words go. `as_json`: standard output carries one JSON document and nothing
    else; `debug`: the tracebacks of errors are shown; `quiet`: no progress; `verbose`: every row of
    a result, where the command usually shows a summary. `out` is the stream of the JSON document
    where it is not sys.stdout. `names` has texts that are shown in the place of others, and
    `before_result` what is done once before the result is shown.

    Control characters in names and messages are shown as escapes.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        debug: bool = False,
        quiet: bool = False,
        verbose: bool = False,
    ) -> None:
        self.as_json, self.debug = as_json, debug
        self.quiet, self.verbose = quiet, verbose
        self.out: TextIO | None = None
        self.names: dict[str, str] = {}
        self.before_result: list[Callable[[], None]] = []

    def result(self, data: Any, show: Callable[[], None]) -> None:
        """The command's answer: `data` as JSON, or what `show` prints."""
        while self.before_result:
            self.before_result.pop(0)()
        if self.as_json:
            self._document(data)
        else:
            show()

    def _document(self, data: Any) -> None:
        import json

        text = self._named(json.dumps(data, indent=2, default=str))
        click.echo(text, file=self.out)

    def _named(self, text: str) -> str:
        for path, name in self.names.items():
            text = text.replace(path, name)
        return text

    def line(self, text: str = "", *, color: str | None = None, bold: bool = False) -> None:
        """One line of the answer."""
        shown = self._styled(printable(self._named(text)), sys.stdout, color, bold)
        click.echo(shown, color=may_color(sys.stdout))

    def styled(self, text: str) -> None:
        """Text of our own that has its terminal escapes already."""
        click.echo(text, color=may_color(sys.stdout))

    def note(self, text: str) -> None:
        """A word beside the answer."""
        click.echo(printable(self._named(text)), err=True)

    def failure(self, text: str, data: Any) -> None:
        """An error that ends the command."""
        if self.as_json:
            with contextlib.suppress(OSError):  # it may be standard output that failed
                self._document({"error": data})
        head, _, rest = printable(self._named(text)).partition("\n")
        prefix = self._styled("error:", sys.stderr, "red", True)
        click.echo(
            f"{prefix} {head}" + (f"\n{rest}" if rest else ""),
            err=True,
            color=may_color(sys.stderr),
        )

    def trace(self, subject: str, traceback: str) -> None:
        """The traceback of what failed of the subject, where it has one and --debug asks for it."""
        if self.debug and traceback:
            self.note(f"{subject}: {traceback.rstrip()}")

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        numbers: Sequence[str] = (),
    ) -> None:
        """A table; the columns named in `numbers` are right-aligned."""
        cells = [[printable(self._named(str(cell))) for cell in row] for row in rows]
        if is_terminal(sys.stdout):
            self._rich_table(columns, cells, numbers)
        else:
            self._plain_table(columns, cells, numbers)

    def _plain_table(
        self, columns: Sequence[str], rows: list[list[str]], numbers: Sequence[str]
    ) -> None:
        widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
        for row in [list(columns), *rows]:
            parts = (
                cell.rjust(width) if name in numbers else cell.ljust(width)
                for name, cell, width in zip(columns, row, widths, strict=True)
            )
            click.echo("  ".join(parts).rstrip())

    def _rich_table(
        self, columns: Sequence[str], rows: list[list[str]], numbers: Sequence[str]
    ) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="bold", pad_edge=False)
        for name in columns:
            table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        Console().print(table)

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """A callback for long work: a live line on a terminal, else a line a phase; on standard
        error.
        """
        if self.quiet:
            yield lambda subject, phase: None
            return
        if not is_terminal(sys.stderr):
            yield lambda subject, phase: self.note(f"{subject}: {phase}")
            return
        from rich.console import Console
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.text import Text

        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting", total=None)

            def show(subject: str, phase: str) -> None:
                text = Text(printable(f"{subject}: {phase}"))
                if phase.startswith(FINISHED):
                    bar.console.print(text)
                else:
                    bar.update(task, description=text.plain)

            yield show

    def _styled(self, text: str, stream: TextIO | None, color: str | None, bold: bool) -> str:
        return (
            click.style(text, fg=color, bold=bold or None)
            if may_color(stream) and (color or bold)
            else text
        )
