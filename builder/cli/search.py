"""`trt-build repo --search-precision`: run the precision search before the build, and show its
results.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import repository
from builder.cli.terminal import Terminal
from builder.errors import UsageError
from builder.printable import counted
from builder.progress import Progress

if TYPE_CHECKING:
    from builder.repository import ModelResult, Search

SETTINGS = (
    "flavor",
    "only",
    "precision",
    "state",
    "options",
    "plugins",
    "jobs",
    "isolate",
)
"""The settings of `repo` that the search also uses."""


def run(
    terminal: Terminal,
    models: Path,
    out: Path | str,
    settings: dict[str, Any],
    progress: Progress,
) -> list[Search]:
    """Search, and write the precisions into the manifests.

    The precision of the command line is then dropped. Raises UsageError if inputs on the command
    line replace a manifest.
    """
    if settings["inputs"] or settings["sample"]:
        raise UsageError(
            "--search-precision writes into manifests, and --input and --sample replace them"
        )
    searches = repository.search_precision(
        models,
        out=out,
        progress=progress,
        **{name: settings[name] for name in SETTINGS},
    )
    settings["precision"] = None
    for search in searches:
        terminal.note(f"{search.name}: {summary(search)}")
    return searches


def failures(searches: list[Search]) -> list[ModelResult]:
    """The results of the models without a suitable precision. They are not built in another
    precision.
    """
    return [
        repository.ModelResult(search.name, error=search.error)
        for search in searches
        if search.error
    ]


def summary(search: Search) -> str:
    """One line: the precision, how it was found, and the file that it is written to."""
    if search.error:
        return f"no precision was found: {search.error.message}"
    in_float32 = ""
    if search.keep_fp32:
        in_float32 = f", in float32: {', '.join(search.keep_fp32)}"
    where = f"as in {search.manifest}"
    if search.written:
        where = f"written into {search.manifest}"
    trials = counted(search.trials, "trial")
    return (
        f"{search.precision}{in_float32} ({trials} by the {search.judge},"
        f" {search.seconds:.1f} s; {where})"
    )
