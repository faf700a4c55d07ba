"""docs/partition.md's tables are those of the measured rows."""

from __future__ import annotations

from benchmarks.partition import PAGE, page


def test_the_tables_are_current() -> None:
    """`python -m benchmarks.partition --table` writes them."""
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text
