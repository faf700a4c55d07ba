"""The page agrees with the rows, and each model has the correct verdict."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from tests.corpus import models, page, running
from tests.corpus.models import Entry


def entry(module: torch.nn.Module, name: str) -> Entry:
    make = partial(models._traced, module, (torch.randn(2, 4),))
    return Entry(name, "test", "traced", make, {0: {0: "n"}}, {"n": (1, 2, 3)})


class Raises(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("not for tracing")


class Unique(torch.nn.Module):
    """torch runs aten::unique."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.unique(x).sum() + x


@pytest.mark.slow
def test_verdicts_of_check_and_repo_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {
        "linear": entry(torch.nn.Linear(4, 2), "linear"),
        "raises": entry(Raises(), "raises"),
        "unique": entry(Unique(), "unique"),
    }
    monkeypatch.setattr(running, "corpus", lambda: entries)
    rows = {name: running.run(name) for name in entries}
    assert rows["linear"]["verdict"] == "one engine" and rows["linear"]["check_agrees"]
    assert rows["raises"] == {
        "name": "raises",
        "source": "test",
        "mode": "traced",
        "verdict": "not exported",
        "reason": "not for tracing",
    }
    assert (
        rows["unique"]["verdict"] in ("torch", "segments")
        and rows["unique"]["check_agrees"]
    )
    text = page.text(list(rows.values()))
    assert (
        "| one engine | 1 |" in text
        and "`check` and `repo` agree on 2 of 2 models." in text
    )


def test_page_is_current() -> None:
    assert page.PAGE.read_text() == page.text(json.loads(page.JSON.read_text()))
