"""The record of each pass: the number of nodes before and after, its time, and optionally the text
of the graph.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from builder import files


@dataclass(frozen=True)
class PassRecord:
    """One pass over one graph. `before` and `after` have the graph's text if `keep_text` is set."""

    name: str
    nodes_before: int
    nodes_after: int
    seconds: float
    before: str = ""
    after: str = ""

    @property
    def changed(self) -> bool:
        """Whether the text differs, or the number of nodes if no text was kept."""
        if self.before:
            return self.before != self.after
        return self.nodes_before != self.nodes_after

    def diff(self, *, color: bool = False) -> str:
        """A unified diff of the graph's text around this pass, colored for a terminal if `color`;
        empty without changes.
        """
        lines = difflib.unified_diff(
            self.before.splitlines(),
            self.after.splitlines(),
            f"before {self.name}",
            f"after {self.name}",
            lineterm="",
        )
        return "\n".join(_color(line) if color else line for line in lines)


_COLORS = {"+": "green", "-": "red", "@": "cyan"}


def _color(line: str) -> str:
    if line[:1] in _COLORS:
        return click.style(line, fg=_COLORS[line[0]])
    return line


def write_sequence(trace: Sequence[PassRecord], folder: Path) -> list[Path]:
    """Write the graph before the first pass and after each pass that changed it, as `00-start.txt`,
    `07-fuse- linear.txt`, ...

    Needs a trace with text; the files are UTF-8, one graph each, and each is written as a whole.
    Other files of an earlier trace are removed. Returns the paths. Raises OSError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"00-start.txt": trace[0].before if trace else ""}
    pages |= {
        f"{i:02}-{record.name}.txt": record.after
        for i, record in enumerate(trace, 1)
        if record.changed
    }
    for name, text in pages.items():
        files.write_text(folder / name, text + "\n")
    for former in folder.glob("[0-9][0-9]-*.txt"):
        if former.name not in pages and former.read_bytes().startswith(b"graph("):
            former.unlink()
    return [folder / name for name in pages]
