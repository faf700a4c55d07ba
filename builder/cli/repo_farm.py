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

    params = context.params
    refused = [text for name, text in NOT_SENT.items() if params.get(name)]
    if not params["isolate"]:
        refused.append("--no-isolate")
    if params.get("no_store"):
        refused.append("--no-store")
    if params["log_level"] == "graph":
        refused.append("--log-level graph")
    if refused:
        raise UsageError(
            f"with --farm there is no {', '.join(refused)}",
            fix="remove it; docs/farm.md names the corresponding key of a farm file",
        )


def run(context: click.Context) -> int:
    """Build, publish and show the outcomes.

    Returns the exit code. Raises the errors of build_on_farm.
    """
    from builder import farm

    refuse(context)
    terminal: Terminal = context.obj
    params = context.params
    described = farm.read(params["farm_file"])
    options.note_unread(terminal, params["models"])
    outcomes, dashboard = _built(terminal, params, described)
    code = exit_code(outcomes)
    data = {
        "repository": params["out"],
        "ok": code == 0,
        "dashboard": dashboard,
        "events": farm.folder_of(params["out"]) / "events.jsonl",
        "results": [as_dict(outcome) for outcome in outcomes],
    }
    terminal.result(data, lambda: show(terminal, outcomes, params["out"]))
    return code


def _built(
    terminal: Terminal, params: dict[str, Any], described: Farm
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
            params["models"],
            params["out"],
            described,
            _settings(params, described),
            rebuild=params["rebuild"],
            require_all=params["require_all"],
            require_sandbox=params["require_sandbox"],
            progress=progress,
            connected=connected,
        )
    return outcomes, "".join(dashboards)


def _settings(params: dict[str, Any], described: Farm) -> Settings:
    from builder.cli import build_options
    from builder.repository import Settings

    options = build_options.take(dict(params))
    names = (
        "only",
        "precision",
        "flavor",
        "serve_as",
        "state",
        "layout",
        "torch_steps",
    )
    shared = {name: params[name] for name in (*names, "accept_incompatible", "sign")}
    return Settings(**shared, options=options, store=_store(params["store"], described))


def _store(requested: str | None, described: Farm) -> str | None:
    """The store that all machines use.

    The local store is allowed only if no other machine builds.
    """
    from builder.store import default_url

    url = requested or described.store or os.environ.get("TRT_BUILD_STORE")
    return url or (default_url() if described.is_local else None)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 without failures, the exit code if all failures share one, else 1. A combination that
    `--require-all` kept from publication has no exit code.
    """
    return agreed(
        outcome.error.exit_code for outcome in outcomes if outcome.error is not None
    )


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """JSON-able."""
    return {
        **vars(outcome),
        "ok": outcome.ok,
        "error": describe(outcome.error) if outcome.error else None,
    }


def show(terminal: Terminal, outcomes: Sequence[Outcome], out: Path) -> None:
    """Print the table, the reasons of exclusions and failures, and the next command."""
    terminal.table(
        COLUMNS, [_row(outcome) for outcome in outcomes], numbers=("attempts", "s")
    )
    for outcome in outcomes:
        name = f"{outcome.model} for {outcome.target}"
        if outcome.state == "excluded":
            terminal.note(f"{name}: excluded: {outcome.because}")
        for warning in (outcome.result or {}).get("warnings", ()):
            terminal.note(f"{name}: warning: {warning}")
        if outcome.error:
            terminal.trace(name, outcome.error.traceback)
            if not terminal.as_json:
                terminal.failure(f"{name}: {outcome.error}", None)
    counts = Counter(outcome.target for outcome in outcomes if outcome.published)
    failed = sum(outcome.error is not None for outcome in outcomes)
    if failed and not counts:
        terminal.line(f"nothing is published: {failed} of {len(outcomes)} failed")
    for target, count in sorted(counts.items()):
        terminal.line(f"{count} models in {out / target}")
    if len(counts) > 1 and not terminal.quiet:
        folders = " ".join(str(out / target) for target in sorted(counts))
        terminal.line(
            f"next: trt-build merge {folders} --out MERGED, where Triton loads the plans"
        )


def _row(outcome: Outcome) -> list[str]:
    result = "FAILED" if outcome.error else outcome.state
    attempts = str(outcome.attempts) if outcome.attempts else ""
    seconds = f"{outcome.seconds:.1f}" if outcome.attempts else ""
    return [
        outcome.model,
        outcome.target,
        result,
        outcome.published,
        attempts,
        outcome.node,
        seconds,
    ]
