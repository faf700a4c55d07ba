"""Markdown tables and means for the generated pages of docs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Sequence


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log)) of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def table(
    head: Sequence[str], rows: Iterable[Iterable[str]], numbers: Collection[str] = ()
) -> Iterator[str]:
    """Return the lines of a Markdown table. The columns `numbers` are aligned to the right."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "".join("---:|" if name in numbers else "---|" for name in head)
    for row in rows:
        cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in row)
        yield "| " + " | ".join(cells) + " |"


def between(text: str, begin: str, end: str, content: str) -> str:
    """The text with new content between two markers."""
    head, _, after = text.partition(begin)
    return f"{head}{begin}\n{content}\n{end}{after.partition(end)[2]}"
