"""`trt-build repo --search-precision`: what is shown of the search that comes before the build."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.cli.command import describe
from builder.cli.terminal import Progress, Terminal
from builder.errors import UsageError

if TYPE_CHECKING:
    from builder.repository import ModelResult, Search

ASKED = ("flavour", "only", "precision", "state", "options", "plugins", "jobs", "isolate")
"""Of `repo`'s settings those that the search takes too."""


def run(
    terminal: Terminal, models: Path, out: Path | str, settings: dict[str, Any], progress: Progress
) -> list[Search]:
    """Search and write the manifests; from then on they say the precision, so the command line's is
    taken away.

    Raises UsageError where inputs on the command line stand in for a manifest.
    """
    from builder.repository import search_precision

    if settings["inputs"] or settings["sample"]:
        raise UsageError(
            "--search-precision writes into manifests, and --input and --sample stand in for one"
        )
    found = search_precision(
        models, out=out, progress=progress, **{name: settings[name] for name in ASKED}
    )
    settings["precision"] = None
    for one in found:
        terminal.note(f"{one.name}: {words(one)}")
    return found


def failures(found: list[Search]) -> list[ModelResult]:
    """The results of the models for which nothing was found: they are not built in another
    precision than was asked for.
    """
    from builder.repository import ModelResult

    return [ModelResult(one.name, error=one.error) for one in found if one.error]


def words(found: Search) -> str:
    """One line: what was found, how, and where it is written."""
    if found.error:
        return f"no precision was found: {found.error.message}"
    kept = f", in float32: {', '.join(found.keep_fp32)}" if found.keep_fp32 else ""
    where = f"written into {found.manifest}" if found.written else f"as {found.manifest} has it"
    trials = f"{found.trials} trial{'s' if found.trials != 1 else ''}"
    return (
        f"{found.precision}{kept} ({trials} by the {found.judge}, {found.seconds:.1f} s; {where})"
    )


def as_dict(found: Search) -> dict[str, Any]:
    """JSON-able."""
    return {**vars(found), "error": describe(found.error) if found.error else None}
