"""Finds the changes since an earlier report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from builder import files
from builder.bench import compare

NEW = "new"
PLAIN = ("status", "precision", "serve_as", "answered_by", "version")
"""Figures for which any difference is a change."""
FORMAT = 1
"""The version of the JSON report. A change that removes a key or changes its meaning raises it."""
GROUPS = ("source", "versions")
"""Mappings for which any different value is a change."""
SMALLEST = {"share": 0.1, "plan_bytes": 0.01, "bytes": 0.01, "build_seconds": 0.25}
"""Figures, with the share of the earlier value above which a difference is a change."""
LEAST = {"share": 0.01, "build_seconds": 1.0}
"""Absolute differences below this do not count as a change, however large their share."""


def read_old(file: Path) -> dict[str, Any]:
    """Read a report that `--format json` wrote. Raises UsageError if the file is none."""
    return files.read_document(
        file,
        _check_report,
        subject="report that trt-build wrote",
        fix="write one with trt-build report REPOSITORY --format json -o FILE",
    )


def _check_report(record: Any) -> None:
    if record["format"] != FORMAT:
        version = f"{record['format']!r:.20}"
        raise ValueError(f"its format is {version}, and this version reads {FORMAT}")
    if not all(isinstance(model["name"], str) for model in record["models"]):
        raise ValueError("a model has no name")


def add_changes(
    models: Sequence[dict[str, Any]], since: Mapping[str, Any]
) -> list[str]:
    """Set `changes` of each model by comparison with the earlier report. Returns the names of
    removed models.
    """
    before = {model["name"]: model for model in since["models"]}
    for model in models:
        old = before.pop(model["name"], None)
        model["changes"] = (
            [_change(NEW, None, None)] if old is None else list(_changes_of(old, model))
        )
    return sorted(before)


def _changes_of(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    for figure in PLAIN:
        if old.get(figure) != new[figure]:
            yield _change(figure, old.get(figure), new[figure])
    for group in GROUPS:
        earlier = old.get(group) or {}
        for key in sorted({*earlier, *new[group]}):
            if earlier.get(key) != new[group].get(key):
                yield _change(f"{group} {key}", earlier.get(key), new[group].get(key))
    for figure, share in SMALLEST.items():
        before = old.get(figure)
        after = new[figure]
        if _differs(before, after, share, LEAST.get(figure, 0.0)):
            yield _change(figure, before, after)
    for change in compare(_measured(old), _measured(new)):
        if change.verdict in ("better", "worse"):
            figure = f"{change.figure} ({change.protocol} {change.load})"
            yield {
                **_change(figure, change.before, change.after),
                "verdict": change.verdict,
            }


def _change(figure: str, before: object, after: object) -> dict[str, Any]:
    return {"figure": figure, "before": before, "after": after, "verdict": None}


def _differs(
    before: float | None, after: float | None, share: float, least: float
) -> bool:
    if before is None or after is None:
        return bool(before != after)
    return bool(abs(after - before) > max(share * abs(before), least))


def _measured(model: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [bench for bench in model.get("bench") or () if bench.get("current")]
