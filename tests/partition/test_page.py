"""The tables of docs/partition.md contain the measured rows."""

from __future__ import annotations

from benchmarks.partition import PAGE, page


def test_tables_of_the_partition_page_are_current() -> None:
    """`python -m benchmarks.partition --table` writes them."""
    text = PAGE.read_text(encoding="utf-8")
    assert page(text) == text
