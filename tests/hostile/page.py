"""The table of docs/security.md from docs/hostile.json: `python docs/generate.py security`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import tables

ROOT = Path(__file__).resolve().parents[2]
PAGE, COUNTS = ROOT / "docs/security.md", ROOT / "docs/hostile.json"
BEGIN, END = "<!-- table: hostile -->", "<!-- end of table -->"

ROWS = {
    "archives": "mutated and crafted archives: loaded, lowered and run",
    "manifests": "mutated manifests: `check`",
    "crafted": "crafted repositories, with ensembles and kept versions: 12 commands",
    "damaged": "damaged published files: `explain`, `merge`, signatures, the Python runtime",
    "requests": "hostile HTTP requests to one tritonserver",
}
COLUMNS = {
    "cases": "tried",
    "refused": "refused",
    "accepted_correct": "accepted, correct outputs",
    "ended_by_limit": "ended by a limit",
    "worker_crashed": "worker crashed",
    "exit_70": "exit code 70",
    "hangs": "hangs",
    "files_written": "files written outside",
    "code_executed": "code executed",
    "wrong_outputs": "wrong outputs",
    "leaks": "files leaked",
}


def table(data: dict[str, dict[str, Any]]) -> str:
    """The Markdown table of these counts."""
    numbers = [*COLUMNS.values()]
    rows = (
        [words, *(str(data[name][key]) for key in COLUMNS)]
        for name, words in ROWS.items()
    )
    return "\n".join(tables.table(["input", *numbers], rows, numbers))


def page() -> str:
    """docs/security.md with the table of the last counts."""
    content = table(json.loads(COUNTS.read_text(encoding="utf-8")))
    return tables.between(PAGE.read_text(encoding="utf-8"), BEGIN, END, content)
