"""The generated documents say what the code does."""

from __future__ import annotations

import pytest

from tests.lowering.pages import DOCS, PAGES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_document_is_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), (
        "run python -m tests.lowering.pages"
    )
