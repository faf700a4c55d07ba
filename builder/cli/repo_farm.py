"""`trt-build repo --farm FILE`: build the repositories of all targets on a Ray cluster."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder.cli import live, options
from builder.cli.command import describe
from builder.cli.repo import agreed
from builder.cli.terminal import Terminal

if TYPE_CHECKING:
    from builder.farm import Farm, Outcome
    from builder.repository import Settings

COLUMNS = ("model", "target", "result", "published", "attempts", "node", "s")
NOT_SENT = {
    "inputs": "--input",
    "sample": "--sample",
    "plugins": "--plugin",
    "targets": "--target",
    "timing_cache": "--timing-cache",
    "search_precision": "--search-precision",
    "edits": "--keep-edits or --overwrite-edits",
    "sbom": "--sbom",
    "record": "--record",
    "write_env": "--write-env",
    "jobs": "--jobs",
}
"""Options of `repo` that a farm does not support, by parameter."""


def refuse(context: click.Context) -> None:
    """Raise one UsageError for all options that a farm does not support."""
    from builder.errors import UsageError

    given = context.params
    found = [text for name, text in NOT_SENT.items() if given.get(name)]
    found += ["--no-isolate"] if not given["isolate"] else []
    found += ["--no-store"] if given.get("no_store") else []
    found += ["--log-level graph"] if given["log_level"] == "graph" else []
    if found:
        raise UsageError(
            f"with --farm there is no {', '.join(found)}",
            fix="remove it; docs/farm.md names the corresponding key of a farm file",
        )


def run(context: click.Context) -> int:
    """Build, publish and show the outcomes.

    Returns the exit code. Raises the errors of build_on_farm.
    """
    from builder import farm

    refuse(context)
    terminal: Terminal = context.obj
    given = context.params
    described = farm.read(given["farm_file"])
    options.note_unread(terminal, given["models"])
    outcomes, dashboard = _built(terminal, given, described)
    code = exit_code(outcomes)
    data = {
        "repository": given["out"],
        "ok": code == 0,
        "dashboard": dashboard,
        "events": farm.folder_of(given["out"]) / "events.jsonl",
        "results": [as_dict(one) for one in outcomes],
    }
    terminal.result(data, lambda: show(terminal, outcomes, given["out"]))
    return code


def _built(
    terminal: Terminal, given: dict[str, Any], described: Farm
) -> tuple[list[Outcome], str]:
    """The outcomes, and the URL of Ray's dashboard; it is empty where there is none."""
    from builder import farm

    dashboards: list[str] = []

    def connected(url: str) -> None:
        dashboards.append(url)
        if url and not terminal.quiet:
            terminal.note(f"Ray's dashboard: {url}")

    with live.progress(terminal) as progress:
        outcomes = farm.build_on_farm(
            given["models"],
            given["out"],
            described,
            _settings(given, described),
            rebuild=given["rebuild"],
            require_all=given["require_all"],
            require_sandbox=given["require_sandbox"],
            progress=progress,
            connected=connected,
        )
    return outcomes, "".join(dashboards)


def _settings(given: dict[str, Any], described: Farm) -> Settings:
    from builder.cli import build_options
    from builder.repository import Settings

    options = build_options.take(dict(given))
    names = (
        "only",
        "precision",
        "flavor",
        "serve_as",
        "state",
        "layout",
        "torch_steps",
    )
    kept = {name: given[name] for name in (*names, "accept_incompatible", "sign")}
    return Settings(**kept, options=options, store=_store(given["store"], described))


def _store(given: str | None, described: Farm) -> str | None:
    """The store that all machines use.

    The local store is allowed only if no other machine builds.
    """
    from builder.store import default_url

    named = given or described.store or os.environ.get("TRT_BUILD_STORE")
    return named or (default_url() if described.is_local else None)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 without failures, the exit code if all failures share one, else 1. A combination that
    `--require-all` kept from publication has no exit code.
    """
    return agreed(one.error.exit_code for one in outcomes if one.error is not None)


def as_dict(one: Outcome) -> dict[str, Any]:
    """JSON-able."""
    return {
        **vars(one),
        "ok": one.ok,
        "error": describe(one.error) if one.error else None,
    }


def show(terminal: Terminal, outcomes: Sequence[Outcome], out: Path) -> None:
    """Print the table, the reasons of exclusions and failures, and the next command."""
    terminal.table(COLUMNS, [_row(one) for one in outcomes], numbers=("attempts", "s"))
    for one in outcomes:
        name = f"{one.model} for {one.target}"
        if one.state == "excluded":
            terminal.note(f"{name}: excluded: {one.because}")
        for warning in (one.result or {}).get("warnings", ()):
            terminal.note(f"{name}: warning: {warning}")
        if one.error:
            terminal.trace(name, one.error.traceback)
            if not terminal.as_json:
                terminal.failure(f"{name}: {one.error}", None)
    counts = Counter(one.target for one in outcomes if one.published)
    failed = sum(one.error is not None for one in outcomes)
    if failed and not counts:
        terminal.line(f"nothing is published: {failed} of {len(outcomes)} failed")
    for target, count in sorted(counts.items()):
        terminal.line(f"{count} models in {out / target}")
    if len(counts) > 1 and not terminal.quiet:
        folders = " ".join(str(out / target) for target in sorted(counts))
        terminal.line(
            f"next: trt-build merge {folders} --out MERGED, where Triton loads the plans"
        )


def _row(one: Outcome) -> list[str]:
    result = "FAILED" if one.error else one.state
    attempts = str(one.attempts) if one.attempts else ""
    seconds = f"{one.seconds:.1f}" if one.attempts else ""
    return [one.model, one.target, result, one.published, attempts, one.node, seconds]
