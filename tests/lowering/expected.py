"""The graph before and after each pass as text, one file a pass: `expected/<pass>.ir`.

A test compares them exactly, and docs/lowering.md shows the first of each. `python -m
tests.lowering.expected` rewrites them; review the changes before you commit them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.lowering.cases import CASES, Case

FOLDER = Path(__file__).parent / "expected"
_CASE = re.compile(
    r"^=== ([^\n]*)\n--- before\n(.*?)--- after\n(.*?)(?=^=== |\Z)",
    re.MULTILINE | re.DOTALL,
)


class Texts(NamedTuple):
    """The canonical text of a graph before and after a pass."""

    before: str
    after: str


def title(case: Case) -> str:
    """The name of a case within its pass."""
    return case.name or getattr(case.source, "__name__", "graph").replace("_", " ")


def current(case: Case) -> Texts:
    """The texts of a case with the present code."""
    return Texts(
        *(_without_locations(case.text(lowered=lowered)) for lowered in (False, True))
    )


def _without_locations(text: str) -> str:
    """IR without source locations."""
    return re.sub(r" # [^\n]*", "", text).strip() + "\n"


def read(step: str) -> dict[str, Texts]:
    """The expected texts of a pass, by the title of the case."""
    file = FOLDER / f"{step}.ir"
    found = _CASE.findall(file.read_text(encoding="utf-8")) if file.exists() else []
    return {name: Texts(before, after) for name, before, after in found}


def file_text(step: str) -> str:
    """The content of a pass's file."""
    return "".join(_sections(step))


def _sections(step: str) -> Iterator[str]:
    for case in (case for case in CASES if case.step == step):
        before, after = current(case)
        yield f"=== {title(case)}\n--- before\n{before}--- after\n{after}"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for step in dict.fromkeys(case.step for case in CASES):
        (FOLDER / f"{step}.ir").write_text(file_text(step), encoding="utf-8")


if __name__ == "__main__":
    main()
