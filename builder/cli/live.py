"""One table over all machines of a farm, while its tasks run."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from builder.cli.terminal import FINISHED, Progress, Terminal, is_terminal
from builder.printable import printable

MOST_ROWS = 20
STARTED = "started on "


class Running:
    """The running tasks: node, phase and start time by name. `finished` has the lines of finished
    tasks until they are printed.
    """

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, str, float]] = {}
        self.finished: list[str] = []

    def __call__(self, task: str, phase: str) -> None:
        """Record that a phase of a task begins (the signature of Progress)."""
        if phase.startswith(FINISHED):
            self.rows.pop(task, None)
            self.finished.append(printable(f"{task}: {phase}"))
        elif phase.startswith(STARTED):
            node = printable(phase.removeprefix(STARTED))
            self.rows[task] = (node, "starting", time.monotonic())
        elif task in self.rows:
            node, _, began = self.rows[task]
            self.rows[task] = (node, printable(phase), began)

    def table(self) -> Any:
        """The tasks as a rich table, longest running first."""
        from rich.table import Table
        from rich.text import Text

        rows_table = Table(box=None, header_style="bold", pad_edge=False)
        for name in ("task", "node", "phase", "s"):
            rows_table.add_column(name, justify="right" if name == "s" else "left")
        now = time.monotonic()
        for task, (node, phase, began) in [*self.rows.items()][:MOST_ROWS]:
            cells = (printable(task), node, phase, f"{now - began:.0f}")
            rows_table.add_row(*map(Text, cells))
        if len(self.rows) > MOST_ROWS:
            rows_table.add_row(f"and {len(self.rows) - MOST_ROWS} more")
        return rows_table


@contextlib.contextmanager
def progress(terminal: Terminal) -> Iterator[Progress]:
    """A callback for the tasks of a farm: a live table on a terminal, else a line for each phase;
    on standard error.
    """
    if terminal.quiet or not is_terminal(sys.stderr):
        with terminal.progress() as plain:
            yield plain
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    running = Running()
    console = Console(stderr=True)
    with Live(console=console, get_renderable=running.table, transient=True):

        def show(task: str, phase: str) -> None:
            running(task, phase)
            while running.finished:
                console.print(Text(running.finished.pop(0)))

        yield show
