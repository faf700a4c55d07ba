"""Every module of torch.nn.modules gives the same outputs after lowering, scripted and traced where
torch allows it. The generated documents, which list these results, are current.
"""

from __future__ import annotations

import pytest
import torch

from tests.lowering.nn_modules import LEFT_OUT, MODULES, results
from tests.lowering.pages import DOCS, PAGES

PARTS_OF_TRANSFORMER = {
    "TransformerEncoder",
    "TransformerDecoder",
    "TransformerDecoderLayer",
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow)
        if name in PARTS_OF_TRANSFORMER
        else name
        for name in sorted(MODULES)
    ],
)
def test_lowered_module_matches_original(name: str) -> None:
    found = results(name)
    assert set(found.values()) <= {"equal", "torch cannot"}, found
    assert "equal" in found.values() or name == "MaxUnpool2d"


def test_every_module_is_in_the_table() -> None:
    every = {name for name in torch.nn.modules.__all__ if not name.startswith("Lazy")}
    assert every - LEFT_OUT <= set(MODULES), sorted(every - LEFT_OUT - set(MODULES))


@pytest.mark.parametrize("name", sorted(PAGES))
def test_generated_document_is_current(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), (
        f"run python docs/generate.py {name.removesuffix('.md')}"
    )
