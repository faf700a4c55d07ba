"""`trt-build report`: write one page of evidence for a repository."""

from __future__ import annotations

from pathlib import Path

import click

from builder import report
from builder.cli import options
from builder.cli.command import command
from builder.cli.terminal import Terminal
from builder.printable import counted


@command(
    "report",
    "trt-build report model_repository -o report.html",
)
@click.argument("repository", type=options.PATH)
@options.path("--out", "-o", help="Output file. [default: standard output]")
@options.choice(
    "--format",
    "form",
    values=("html", "json", "junit", "markdown"),
    help="[default: by the suffix of FILE, else html]",
)
@options.path(
    "--since",
    metavar="OLD.json",
    help="Show the changes since this report, written with --format json.",
)
@options.only
def report_command(
    terminal: Terminal,
    /,
    repository: Path,
    out: Path | None,
    form: str | None,
    since: Path | None,
    only: tuple[str, ...],
) -> None:
    """Report on the models of REPOSITORY: the records of the build, and the results that `repo
    --record`, `verify --record` and `bench --record` wrote to REPOSITORY.results. No model is run.

    The HTML page loads no other files. The exit code is 0 if the report was written, even if models
    failed.
    """
    old = report.read_old(since) if since else None
    if form is None and out:
        form = report.format_of(out)
    elif form is None:
        form = "json" if terminal.as_json else "html"
    contents = report.gather(repository, only, since=old)
    text = report.render(contents, form)
    if out is None:
        data = contents if form == "json" else {"format": form, "text": text}
        terminal.result(data, lambda: terminal.styled(text.rstrip("\n")))
        return
    report.records.write_text(out, text)
    data = {"file": out, "format": form, "summary": contents["summary"]}
    terminal.result(data, lambda: terminal.line(_line(out, contents["summary"])))


def _line(out: Path, summary: dict[str, int]) -> str:
    parts = (
        f"{summary[state]} {state}" for state in ("passed", "failed", "not verified")
    )
    return f"{out}: {counted(summary['models'], 'model')}, {', '.join(parts)}"
