"""`trt-build repo --search-precision`: run the precision search before the build, and show its
results.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.cli.terminal import Progress, Terminal
from builder.errors import UsageError

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
    from builder.repository import search_precision

    if settings["inputs"] or settings["sample"]:
        raise UsageError(
            "--search-precision writes into manifests, and --input and --sample replace them"
        )
    found = search_precision(
        models,
        out=out,
        progress=progress,
        **{name: settings[name] for name in SETTINGS},
    )
    settings["precision"] = None
    for one in found:
        terminal.note(f"{one.name}: {summary(one)}")
    return found


def failures(found: list[Search]) -> list[ModelResult]:
    """The results of the models without a suitable precision. They are not built in another
    precision.
    """
    from builder.repository import ModelResult

    return [ModelResult(one.name, error=one.error) for one in found if one.error]


def summary(found: Search) -> str:
    """One line: the precision, how it was found, and the file that it is written to."""
    if found.error:
        return f"no precision was found: {found.error.message}"
    kept = ""
    if found.keep_fp32:
        kept = f", in float32: {', '.join(found.keep_fp32)}"
    where = (
        f"written into {found.manifest}"
        if found.written
        else f"as {found.manifest} has it"
    )
    trials = f"{found.trials} trial{'s' if found.trials != 1 else ''}"
    return (
        f"{found.precision}{kept} ({trials} by the {found.judge},"
        f" {found.seconds:.1f} s; {where})"
    )
