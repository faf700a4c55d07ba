"""The page in a real Chromium: figures, widths, keyboard, contrast, print."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from builder import build_repository, report
from builder.printable import printable
from builder.report.formatting import KINDS, pointed
from tests.report import repositories
from tests.report.chromium import Tab, chromium, program
from tests.report.repositories import HOSTILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        program() is None, reason="no chromium: apt-get install chromium"
    ),
]

MANIFEST = """\
inputs: [{name: x, dtype: float32, shape: [batch, 16]}]
dims: {batch: {min: 1, opt: 4, max: 8}}
outputs: [y]
versions: {keep: 2}
"""
LARGEST = 3_000_000
"""Bytes of a page of 50 models."""


class Partial(torch.nn.Module):
    """A model with two plans and a torch segment between them, because TensorRT lacks svdvals."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        z = torch.linalg.svdvals(y.unsqueeze(-1).matmul(y.unsqueeze(1))).sum(
            -1, keepdim=True
        )
        return self.last(y * z.sigmoid())


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("page")
    repository = repositories.write(folder)
    (folder / "models").mkdir()
    torch.manual_seed(0)
    torch.jit.script(Partial().eval()).save(str(folder / "models" / "partial.pt"))
    (folder / "models" / "partial.yaml").write_text(MANIFEST)
    (built,) = build_repository(folder / "models", repository, isolate=False)
    assert built.ok, built.error
    return json.loads(report.render(report.gather(repository), "json"))


@pytest.fixture(scope="module")
def page(document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(report.render(document, "html"))
    return file


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with chromium(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


OPEN = "document.querySelectorAll('details').forEach(one => { one.open = true })"


def test_figures_and_marks_equal_the_json(
    tab: Tab, page: Path, document: dict[str, Any]
) -> None:
    tab.open(page)
    figures = tab.run(
        "[...document.querySelectorAll('data')].map(d => [d.dataset.at, d.value, d.innerText"
        " || d.textContent])"
    )
    assert len(figures) > 80
    for pointer, value, text in figures:
        actual = pointed(document, pointer)
        assert value == str(actual), pointer
        assert text in {
            written for form in KINDS.values() if (written := _or_none(form, actual))
        }
    marks = tab.run(
        "[...document.querySelectorAll('svg [data-at]')].map(m => [m.dataset.at, m.dataset.value])"
    )
    assert len(marks) > 50
    for pointer, value in marks:
        actual = pointed(document, pointer)
        if isinstance(actual, dict):  # a scatter plot: the number of its pairs
            actual = len(actual["expected"])
        assert value == str(actual), pointer
    shown = {pointer for pointer, *_ in [*figures, *marks]}
    for index, model in enumerate(document["models"]):
        if model["share"] is not None:
            assert f"/models/{index}/share" in shown
        for number, _ in enumerate(model["result"]["lowering"]):
            assert f"/models/{index}/result/lowering/{number}/after" in shown


def _or_none(form: Any, value: Any) -> str | None:
    try:
        return str(form(value))
    except (TypeError, ValueError):
        return None


def test_bar_lengths_are_proportional_to_values(tab: Tab, page: Path) -> None:
    tab.open(page)
    charts = tab.run(
        "[...document.querySelectorAll('figure')].map(f => [f.querySelector('title').textContent,"
        " [...f.querySelectorAll('rect[data-value]')].map(r => [+r.dataset.value,"
        " +r.getAttribute('width')])])"
    )
    compared = 0
    for title, bars in charts:
        if title in ("Batches", "Build time"):
            scale = max(bars)[1] / max(bars)[0]
            assert all(abs(width - scale * value) <= 0.6 for value, width in bars), (
                title
            )
            compared += len(bars)
    assert compared > 5


OVERFLOWING = """[...document.querySelectorAll('body *')].filter(one => {
  const box = one.getBoundingClientRect();
  return box.width && (box.right > innerWidth + 1 || box.left < -1)
    && !one.closest('.skip') && !one.closest('thead');
}).map(one => one.outerHTML.slice(0, 120))"""
TRUNCATED = """[...document.querySelectorAll('figure > svg text')].filter(one => {
  const box = one.getBoundingClientRect(), around = one.closest('svg').getBoundingClientRect();
  return box.right > around.right + 6 || box.left < around.left - 6;
}).map(one => one.textContent)"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [380, 1400])
def test_layout_has_no_overflow_and_enough_contrast(
    tab: Tab, page: Path, width: int, dark: bool
) -> None:
    tab.open(page, width, dark=dark)
    tab.run(OPEN)
    assert tab.run("innerWidth") == width
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run(OVERFLOWING) == []
    assert tab.run(TRUNCATED) == []
    background = tab.run("getComputedStyle(document.body).backgroundColor")
    assert _luminance(background) < 0.1 if dark else _luminance(background) > 0.9
    for kind in (
        "body",
        ".soft",
        ".passed",
        ".failed",
        ".open",
        "a:not(.skip)",
        "svg text",
    ):
        style = f"getComputedStyle(document.querySelector('{kind}'))"
        color = tab.run(f"{style}.{'fill' if 'svg' in kind else 'color'}")
        light, low = sorted((_luminance(color), _luminance(background)), reverse=True)
        assert (light + 0.05) / (low + 0.05) >= 4.5, (kind, color, background)


def _luminance(color: str) -> float:
    """The relative luminance of WCAG 2 of `rgb(1, 2, 3)`."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_all_controls_are_reachable_by_keyboard(
    tab: Tab, page: Path, document: dict[str, Any]
) -> None:
    tab.open(page)
    focus = "document.activeElement.className || document.activeElement.tagName"
    tab.press("Tab")
    assert tab.run(focus) == "skip"
    reached = set()
    for _ in range(60):
        tab.press("Tab")
        reached.add(tab.run("document.activeElement.tagName"))
        if (
            tab.run("document.activeElement.closest('th[scope=col]')?.textContent")
            == "size"
        ):
            break
    assert {"INPUT", "SELECT", "BUTTON"} <= reached
    tab.press("Enter")
    tab.wait_for("document.querySelector('[aria-sort]')?.textContent === 'size'")
    names = tab.run(
        "[...document.querySelectorAll('#overview tbody tr')].map(r => r.dataset.name)"
    )
    sizes = {printable(one["name"]): one["bytes"] for one in document["models"]}
    known = [sizes[name] for name in names if sizes[name] is not None]
    assert known == sorted(known) and sizes[names[-1]] is None
    tab.run("document.querySelector('#model-1 > summary').focus()")
    tab.press("Enter")
    tab.wait_for("document.getElementById('model-1').open")
    tab.run("document.querySelector('tr[data-details=model-2] a').focus()")
    tab.press("Enter")
    tab.wait_for("document.getElementById('model-2').open")


def test_filters_hide_models(tab: Tab, page: Path, document: dict[str, Any]) -> None:
    tab.open(page)
    tab.run(
        "status_ = document.getElementById('status'); status_.value = 'failed';"
        "status_.dispatchEvent(new Event('change'))"
    )
    rows = "[...document.querySelectorAll('#overview tbody tr')].filter(r => !r.hidden).length"
    assert tab.run(rows) == document["summary"]["failed"]
    shown = (
        "[...document.querySelectorAll('details.model')].filter(d => !d.hidden).length"
    )
    assert tab.run(shown) == document["summary"]["failed"]


def test_page_has_no_errors_and_escapes_names(tab: Tab, page: Path) -> None:
    tab.open(page)
    names = tab.run("[...document.querySelectorAll('h2')].map(one => one.textContent)")
    assert printable(HOSTILE) in names
    assert tab.run("document.scripts.length") == 1
    assert tab.problems() == []
    # the content security policy blocks injected code
    tab.run(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"ran=1\">')"
    )
    assert tab.run("typeof ran") == "undefined"


def test_printed_page_has_all_models(
    tab: Tab, page: Path, document: dict[str, Any]
) -> None:
    tab.open(page)
    pages = len(re.findall(rb"/Type\s*/Page\b", tab.printed()))
    assert pages > len(document["models"])
    assert not tab.run("document.getElementById('model-1').open")


def test_page_of_50_models_is_small(
    document: dict[str, Any], tab: Tab, tmp_path: Path
) -> None:
    full = max(document["models"], key=lambda one: len(json.dumps(one)))
    measured = next(one for one in document["models"] if one["name"] == "checked")
    complete = {
        **measured,
        "result": full["result"],
        "graph": full["graph"],
        "phases": full["phases"],
    }
    copies = [{**complete, "name": f"model {number}"} for number in range(50)]
    text = report.render({**document, "models": copies}, "html")
    assert len(text.encode()) < LARGEST
    (tmp_path / "large.html").write_text(text)
    tab.open(tmp_path / "large.html", 380)
    assert tab.run("document.querySelectorAll('details.model').length") == 50
