"""`trt-build explain`: the parts of a model's key, and which of them changed since its last
plan.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder import repository
from builder.cli import build_options, options
from builder.cli.command import command
from builder.cli.terminal import Terminal


@command(
    "explain",
    "trt-build explain models --out model_repository",
)
@build_options.request_options
@options.path(
    "--out",
    metavar="DIR",
    help="The model repository to compare with. [default: compare with the store]",
)
@options.flag(
    "--all",
    "everything",
    help="Show all parts of the request and of each plan's key, not only the changes.",
)
def explain_command(
    terminal: Terminal,
    /,
    models: Path,
    out: Path | None,
    everything: bool,
    inputs: tuple[str, ...],
    store: str | None,
    **settings: Any,
) -> None:
    """Print what changed in MODELS since their plans were last built. With --all, also print each
    part of the plans' keys.

    MODELS and the options are those of `repo`. MODELS may also be the folder of a published model.
    Nothing is built, and torch is not loaded.
    """
    chosen = build_options.take(settings)
    reports = repository.explain(
        models,
        out,
        options=chosen,
        store=store,
        inputs=options.parsed(inputs),
        **settings,
    )
    everything = everything or terminal.verbose
    data: dict[str, Any] = {"models": reports}
    if out is not None:
        data["without_source"] = options.without_source(terminal, models, out)
    terminal.result(data, lambda: show_all(terminal, reports, everything))


def show_all(
    terminal: Terminal, reports: list[dict[str, Any]], everything: bool
) -> None:
    """Every model, one after another."""
    for report in reports:
        show(terminal, report)
        if everything:
            show_parts(terminal, report)


def show(terminal: Terminal, report: dict[str, Any]) -> None:
    """Print the verdict of one model, what changed, and why it was built last."""
    terminal.line(f"{report['name']}: {report['verdict']}", bold=True)
    if report["last_because"]:
        terminal.line(f"  built last because: {report['last_because']}")


def show_parts(terminal: Terminal, report: dict[str, Any]) -> None:
    """Print the parts of the request, and the key of each stored plan."""
    from builder.store import display_text, flattened

    terminal.line("  requested:")
    for name, value in flattened(report["request"]):
        terminal.line(f"    {name:30} {display_text(value)}")
    for label, plan in report["plans"].items():
        where = {
            True: "in the store",
            False: "not in the store",
            None: "no store responds",
        }[plan["stored"]]
        terminal.line(f"  plan of the {label}: {plan['key'][:16]}, {where}")
        for name, value in flattened(plan["parts"]):
            terminal.line(f"    {name:30} {display_text(value)}")
