"""Every example program of torch.export has a verdict, and the page has the same."""

from __future__ import annotations

import pytest

from tests.export.__main__ import MEANINGS, PAGE, text
from tests.export.examples import names, run


@pytest.mark.slow
def test_page_of_examples_is_current() -> None:
    rows = [run(name) for name in names()]
    assert {row.verdict for row in rows} <= set(MEANINGS)
    assert PAGE.read_text() == text(rows)
