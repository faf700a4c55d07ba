"""Output of all commands: tables and progress on a terminal, plain lines otherwise, JSON with
--json.

Results go to standard output; progress, notes and errors to standard error. rich is imported only
on a terminal.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TextIO

import click

from builder.printable import printable
from builder.progress import FINISHED, Progress, silent


def command_line(*words: object) -> str:
    """The words as one command in shell syntax."""
    return shlex.join(map(str, words))


def is_terminal(stream: TextIO | None) -> bool:
    """Whether the stream is an interactive terminal that supports control sequences. None is a
    closed stream.
    """
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def may_color(stream: TextIO | None) -> bool:
    """Whether to use color: on a terminal, unless NO_COLOR is set (https://no-color.org)."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


@contextmanager
def only_json() -> Iterator[TextIO | None]:
    """Reserve standard output for one JSON document. Inside the block all other output, including
    that of models and libraries, goes to standard error.
    """
    real = sys.stdout
    sys.stdout = sys.stderr
    try:
        with contextlib.ExitStack() as stack:
            yield stack.enter_context(_redirected(real)) if _is_file_1(real) else real
    finally:
        sys.stdout = real


def _is_file_1(stream: TextIO | None) -> bool:
    """Whether the stream is the standard output of the process, not a replacement by a test."""
    with contextlib.suppress(OSError, ValueError):
        return stream is not None and stream.fileno() == 1
    return False


@contextmanager
def _redirected(real: TextIO) -> Iterator[TextIO]:
    """The process's standard output as a new stream, while descriptor 1 is standard error."""
    real.flush()
    standard_output = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(
            os.dup(standard_output), "w", encoding=real.encoding, errors=real.errors
        ) as stream:
            yield stream
    finally:
        os.dup2(standard_output, 1)
        os.close(standard_output)


def _column_widths(columns: Sequence[Sequence[str]], space: int) -> list[int] | None:
    """The widths of columns of these cells, which together fill at most `space`. No word is split:
    paths stay whole, to be copied. None if there is too little space.
    """
    from rich.cells import cell_len

    full = [max(map(cell_len, cells)) for cells in columns]
    widths = [
        max(cell_len(word) for cell in cells for word in ["", *cell.split()])
        for cells in columns
    ]
    spare = space - sum(widths)
    if spare < 0:
        return None
    # the columns that need the least come first, so that others get what these leave
    order = sorted(range(len(full)), key=lambda index: full[index] - widths[index])
    for count, index in zip(range(len(order), 0, -1), order, strict=True):
        more = min(full[index] - widths[index], spare // count)
        widths[index] += more
        spare -= more
    return widths


class Terminal:
    """The output of a command.

    `as_json`: standard output has one JSON document and nothing else. `debug`: show the tracebacks
    of errors. `quiet`: no progress and hints. `verbose`: all rows of a result instead of a summary.
    `out` is the stream of the JSON document if it is not sys.stdout. `names` maps texts to their
    displayed form. `before_result` is called once before the result is shown. Control characters in
    names and messages are shown as escapes.
    """

    def __init__(
        self,
        *,
        as_json: bool = False,
        debug: bool = False,
        quiet: bool = False,
        verbose: bool = False,
    ) -> None:
        self.as_json = as_json
        self.debug = debug
        self.quiet = quiet
        self.verbose = verbose
        self.out: TextIO | None = None
        self.names: dict[str, str] = {}
        self.before_result: list[Callable[[], None]] = []

    def result(self, data: Any, show: Callable[[], None]) -> None:
        """Print the command's result: `data` as JSON, or the output of `show`."""
        while self.before_result:
            self.before_result.pop(0)()
        if self.as_json:
            self._document(data)
        else:
            show()

    def _document(self, data: Any) -> None:
        import json

        text = self._with_urls(json.dumps(data, indent=2, default=str))
        click.echo(text, file=self.out)

    def _with_urls(self, text: str) -> str:
        for path, name in self.names.items():
            text = text.replace(path, name)
        return text

    def line(
        self, text: str = "", *, color: str | None = None, bold: bool = False
    ) -> None:
        """Print one line of the result."""
        styled = self._styled(
            printable(self._with_urls(text)), sys.stdout, color, bold=bold
        )
        click.echo(styled, color=may_color(sys.stdout))

    def styled(self, text: str) -> None:
        """Print text that already contains terminal escapes."""
        click.echo(text, color=may_color(sys.stdout))

    def note(self, text: str) -> None:
        """Print a note to standard error."""
        click.echo(printable(self._with_urls(text)), err=True)

    def hint(self, text: str) -> None:
        """Print information that is no warning to standard error, without `quiet` only."""
        if not self.quiet:
            self.note(text)

    def note_if_any(self, text: str | None) -> None:
        """Print a note to standard error, if there is one."""
        if text:
            self.note(text)

    def failure(self, text: str, data: Any) -> None:
        """Print an error that ends the command."""
        if self.as_json:
            with contextlib.suppress(OSError):  # standard output itself may have failed
                self._document({"error": data})
        head, _, following = printable(self._with_urls(text)).partition("\n")
        prefix = self._styled("error:", sys.stderr, "red", bold=True)
        click.echo(
            f"{prefix} {head}" + (f"\n{following}" if following else ""),
            err=True,
            color=may_color(sys.stderr),
        )

    def trace(self, subject: str, traceback: str) -> None:
        """Print the traceback of the subject's error, if it has one and --debug is set."""
        if self.debug and traceback:
            self.note(f"{subject}: {traceback.rstrip()}")

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        *,
        numbers: Sequence[str] = (),
    ) -> None:
        """Print a table. Columns in `numbers` are right-aligned."""
        cells = [
            [printable(self._with_urls(str(cell))) for cell in row] for row in rows
        ]
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

        console = Console()
        cells = [*zip(columns, *rows, strict=True)]
        widths = _column_widths(cells, console.width - 2 * (len(columns) - 1))
        if widths is None:
            self._list(columns, rows)
            return
        table = Table(box=None, header_style="bold", pad_edge=False)
        for name, width in zip(columns, widths, strict=True):
            justify: Literal["left", "right"] = "right" if name in numbers else "left"
            table.add_column(name, justify=justify, overflow="fold", width=width)
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)

    def _list(self, columns: Sequence[str], rows: list[list[str]]) -> None:
        """Print a line for each cell. A table of more columns than fit would split every word."""
        width = max(map(len, columns))
        for first, *others in rows:
            self.line(first, bold=True)
            for name, cell in zip(columns[1:], others, strict=True):
                if cell:
                    self.line(f"  {name:{width}}  {cell}")

    @contextmanager
    def progress(self) -> Iterator[Progress]:
        """A progress callback: a live line on a terminal, else a line for each phase; on standard
        error.
        """
        if self.quiet:
            yield silent
            return
        if not is_terminal(sys.stderr):
            yield lambda subject, phase: self.note(f"{subject}: {phase}")
            return
        from rich.console import Console
        from rich.progress import Progress as Bar
        from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.text import Text

        spinner = "dots" if "utf" in (sys.stderr.encoding or "").lower() else "line"
        columns = (
            SpinnerColumn(spinner),
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

    def _styled(
        self, text: str, stream: TextIO | None, color: str | None, *, bold: bool
    ) -> str:
        if may_color(stream) and (color or bold):
            return click.style(text, fg=color, bold=bold or None)
        return text
