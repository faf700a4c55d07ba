"""`trt-build check`: all steps of `repo` except publication."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import repository
from builder.cli import build_options, options
from builder.cli.command import command
from builder.cli.repo import common_exit_code
from builder.cli.terminal import Terminal

if TYPE_CHECKING:
    from builder.errors import ManifestError


@command(
    "check",
    "trt-build check models",
    "trt-build check models/net.pt --precision fp16 --no-build",
)
@options.models_options
@options.layout
@options.torch_steps
@build_options.build_options
@options.plugins
@options.confinement
@options.store
@click.option(
    "--build/--no-build",
    default=True,
    help="Compile the networks if TensorRT for RTX is used. [default: --build]",
)
@options.flag(
    "--paranoid",
    help="Run the graph after each pass and the network on seeded inputs, and compare.",
)
@click.option(
    "--show-config/--no-config",
    "with_config",
    default=False,
    help="Show the generated config.pbtxt. [default: --no-config]",
)
def check_command(
    terminal: Terminal,
    /,
    models: Path,
    inputs: tuple[str, ...],
    paranoid: bool,
    with_config: bool,
    isolate: bool,
    build: bool,
    store: str | None,
    **arguments: Any,
) -> int:
    """Load, lower, convert and compile every model of MODELS, and compare it with the goldens.
    Report unsupported operators, unsupported builder options, and the Triton config.

    Only TensorRT for RTX compiles here, because it needs no GPU. Its plans go into the store, where
    `repo` finds them. Nothing is published.
    """
    from builder.cli.isolated import examine_all

    chosen = build_options.take(arguments)
    settings = repository.Settings(
        options=chosen, inputs=options.parsed(inputs), store=store, **arguments
    )
    without: dict[str, ManifestError] = {}
    options.note_unread(terminal, models)
    orders = settings.orders(settings.specs(models, without), models)
    with terminal.progress() as progress:
        reports = examine_all(orders, paranoid, progress, isolate, build)
    reports += [_without_manifest(name, error) for name, error in without.items()]
    reports.sort(key=lambda report: str(report["name"]))
    return _finish(terminal, reports, with_config)


def _finish(
    terminal: Terminal, reports: list[dict[str, Any]], with_config: bool
) -> int:
    """Show the reports and return the exit code."""
    for report in reports:
        terminal.trace(report["name"], (report["error"] or {}).get("traceback", ""))
    code = common_exit_code(
        report["error"]["exit_code"] for report in reports if report["error"]
    )
    data = {"ok": code == 0, "models": reports}
    terminal.result(data, lambda: show(terminal, reports, with_config))
    return code


def _without_manifest(name: str, error: ManifestError) -> dict[str, Any]:
    file = error.mistakes[0].file
    return {"name": name, "file": file, "error": error.as_dict(), "config": None}


def show(terminal: Terminal, reports: list[dict[str, Any]], with_config: bool) -> None:
    """Print a table, then for each model its errors or its Triton config."""
    columns = ("model", "result", "passes", "operators", "unsupported", "layers")
    terminal.table(columns, [_row(report) for report in reports], numbers=columns[2:])
    passed = sum(not report["error"] for report in reports)
    for report in reports:
        _show_report(terminal, report, with_config)
    if any(not report.get("compiled", True) for report in reports):
        terminal.line(
            "not compiled: TensorRT can still reject a network when repo builds it"
        )
    terminal.line(f"{passed} of {len(reports)} models can be built")


def _show_report(terminal: Terminal, report: dict[str, Any], with_config: bool) -> None:
    for warning in report.get("warnings", ()):
        terminal.line(f"{report['name']}: warning: {warning}")
    if report["error"]:
        terminal.line(
            f"\n{report['name']}: {_error_text(report['error'])}", color="red"
        )
        return
    for state in report.get("state", ()):
        keeper = "the server" if state["kept"] == "implicit" else "the client"
        shape = ", ".join(map(str, state["shape"]))
        terminal.line(
            f"{report['name']}: state {state['input']} <- {state['output']} [{shape}], kept by"
            f" {keeper}"
        )
    if report.get("quantized"):
        show_quantized(terminal, report["name"], report["quantized"])
    if report.get("fallback"):
        _show_segments(terminal, report)
    if with_config or terminal.verbose:
        terminal.line(f"\n{report['name']}/config.pbtxt", bold=True)
        terminal.line(report["config"].rstrip())


def show_quantized(terminal: Terminal, name: str, quantization: dict[str, Any]) -> None:
    """Print each matrix product, its quantization error, and why it was not quantized."""
    terminal.line(f"\n{name}: {quantization['summary']}")
    rows = [
        [
            layer["name"],
            "8 bits" if layer["quantized"] else "",
            "" if layer["sqnr"] is None else f"{layer['sqnr']:.1f}",
            layer["reason"],
        ]
        for layer in quantization["layers"]
    ]
    terminal.table(
        ("product", "computes in", "SQNR dB", "because"), rows, numbers=("SQNR dB",)
    )


def _show_segments(terminal: Terminal, report: dict[str, Any]) -> None:
    """Print the segments and their boundary tensors."""
    fallback = report["fallback"]
    layout = ""
    if "layout" in fallback:
        layout = f"; {fallback['layout']}: {fallback['reason']}"
    terminal.line(f"\n{report['name']}: {fallback['summary']}{layout}")
    rows = [
        [
            number,
            part["runs_in"],
            part["nodes"],
            part["flops"],
            part["crossing_bytes"],
            ", ".join(part["inputs"]),
        ]
        for number, part in enumerate(fallback["segments"])
    ]
    terminal.table(
        ("#", "runs in", "nodes", "flops", "bytes in", "reads"),
        rows,
        numbers=("#", "nodes", "flops"),
    )


def _error_text(error: dict[str, Any]) -> str:
    lines = [
        error["message"],
        *(f"  {key + ':':6} {error[key]}" for key in ("where", "fix") if key in error),
    ]
    return "\n".join(lines)


def _row(report: dict[str, Any]) -> list[object]:
    operators = report.get("operators")
    accepted = "in segments" if report.get("fallback") else "ok"
    return [
        report["name"],
        "FAILED" if report["error"] else accepted,
        report.get("passes", ""),
        sum(operators["used"].values()) if operators else "",
        len(operators["unsupported"]) if operators else "",
        report.get("layers", ""),
    ]
