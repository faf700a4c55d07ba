"""Markdown tables and means for the pages of measurements."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence


def geometric_mean(values: Sequence[float]) -> float:
    """exp(mean(log)) of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Return the lines of a Markdown table."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
