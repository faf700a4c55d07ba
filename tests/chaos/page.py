"""Writes the tables of docs/reliability-tests.md from docs/chaos.json, for `docs/generate.py
reliability-tests`.
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any

from benchmarks import tables

ROOT = Path(__file__).resolve().parents[2]
PAGE, COUNTS = ROOT / "docs/reliability-tests.md", ROOT / "docs/chaos.json"
TABLES = {
    "kill": {
        "kills": "kills",
        "old": "old state",
        "new": "new state",
        "torn": "torn",
        "not_repaired": "not repaired",
        "left_by_caught_signals": "left after a caught signal",
        "states": "distinct states",
        "served": "of them served",
        "served_wrong": "answers wrong",
    },
    "push": {
        "pushes": "pushes",
        "rejected": "bad, rejected",
        "wrong_verdicts": "wrong verdicts",
        "requests": "requests",
        "failed": "failed",
        "wrong": "wrong",
        "leaked_models": "leaked models",
        "leaked_processes": "leaked processes",
        "flat": "memory flat",
        "kib_per_push": "KiB a push",
        "p50_ms": "p50 ms",
        "p99_ms": "p99 ms",
        "slowest_ms": "slowest ms",
    },
    "reload": {
        "loads": "loads",
        "start_mib": "MiB before",
        "end_mib": "MiB after",
        "kib_per_load": "KiB a load",
        "crashed_at": "crashed after",
    },
    "limit": {
        "clients": "clients",
        "requests": "requests",
        "per_second": "requests/s",
        "failed": "failed",
        "wrong": "wrong",
        "busy": "processors used",
        "flat": "memory flat",
        "server_growth": "growth of the server",
        "stub_growth": "growth of its processes",
        "p50_ms": "p50 ms",
        "p99_ms": "p99 ms",
        "slowest_ms": "slowest ms",
    },
}
NOT_MEASURED = "-"


def record(command: str, counts: dict[str, Any]) -> None:
    """Store the counts of a run of `python -m tests.chaos <command>`; one row for each command."""
    rows = json.loads(COUNTS.read_text(encoding="utf-8")) if COUNTS.is_file() else {}
    today = datetime.date.today().isoformat()
    rows[command] = {**counts, "date": today, "cores": os.cpu_count()}
    COUNTS.write_text(
        json.dumps(dict(sorted(rows.items())), indent=2) + "\n", encoding="utf-8"
    )


def table(kind: str, rows: dict[str, dict[str, Any]]) -> str:
    """The Markdown table of the runs of one kind."""
    columns = TABLES[kind]
    lines = [
        [
            f"`{command}`",
            *(_cell(counts.get(key)) for key in columns),
            counts["date"],
            f"{counts['wall_seconds']:.0f} s, {counts['cores']} cores",
        ]
        for command, counts in rows.items()
        if command.split()[0] == kind
    ]
    head = ["command", *columns.values(), "date", "duration"]
    return "\n".join(tables.table(head, lines, [*columns.values(), "duration"]))


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NOT_MEASURED if value is None else str(value)


def page() -> str:
    """Return docs/reliability-tests.md with the tables of the most recent runs."""
    text, rows = (
        PAGE.read_text(encoding="utf-8"),
        json.loads(COUNTS.read_text(encoding="utf-8")),
    )
    for kind in TABLES:
        begin = f"<!-- table: {kind} -->"
        text = tables.between(text, begin, "<!-- end of table -->", table(kind, rows))
    return text
