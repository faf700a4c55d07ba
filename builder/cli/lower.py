"""`trt-build lower`: the graph after lowering, after any pass, or what each pass did."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import click

from builder.cli import options
from builder.cli.command import Command
from builder.cli.terminal import Terminal, may_color


@click.command("lower", cls=Command, short_help="Print a model's graph after any pass.")
@click.argument("file", type=options.PATH)
@click.option(
    "--module", help="A submodule or method of the file; the manifest beside it says so otherwise."
)
@click.option(
    "--trace", is_flag=True, help="For each pass the nodes before and after, and the time."
)
@click.option(
    "--show", "shown", multiple=True, metavar="PASS", help="What this pass changed, as a diff."
)
@click.option("--stop-after", metavar="PASS", help="Run the passes up to this one.")
@click.option(
    "--precision", type=click.Choice(options.PRECISIONS), help="Also what conversion does for it."
)
@click.option(
    "--unroll-limit", type=click.IntRange(0), help="Unroll loops of a known trip count up to this."
)
@click.option(
    "--out",
    type=options.PATH,
    metavar="DIR",
    help="Write the graph after each pass, and lowered.pt, here.",
)
@click.pass_obj
def lower_command(
    terminal: Terminal,
    /,
    file: Path,
    module: str | None,
    trace: bool,
    shown: tuple[str, ...],
    stop_after: str | None,
    precision: str | None,
    unroll_limit: int | None,
    out: Path | None,
) -> None:
    """Lower the TorchScript FILE and print its graph.

    --trace, --show and --out tell what the passes did instead.
    """
    from builder import lowering, torchscript

    said = _manifest(file)
    loaded = torchscript.load(file, module or said.get("module"))
    limit = said.get("unroll_limit", 64) if unroll_limit is None else unroll_limit
    half, keep_text = _computes_in_half(precision), bool(shown or out)
    later = [] if half is None else [step.name for step in lowering.passes_for(half)]
    for name in (*shown, *filter(None, [stop_after])):
        _known(name, later)
    early = None if stop_after in later else stop_after
    lowered = lowering.lower(loaded, unroll_limit=limit, stop_after=early, keep_text=keep_text)
    if half is not None and not early:
        lowered = lowering.for_precision(lowered, half, stop_after=stop_after, keep_text=keep_text)
    written = _write(lowered, out, whole=stop_after is None) if out else []
    data = {
        "file": file,
        "inputs": lowered.inputs,
        "outputs": lowered.outputs,
        "passes": [_record(record) for record in lowered.trace],
        "graph": lowered.text,
        "written": written,
    }
    terminal.result(data, lambda: _show(terminal, lowered, trace, shown, written))


def _manifest(file: Path) -> dict[str, Any]:
    """What a manifest beside the file says of `module` and `unroll_limit`; nothing where it has
    mistakes or is not.
    """
    from builder.manifest import folder, loading

    if not file.is_file():
        return {}
    beside = folder.find(file)[0].manifest
    read = loading.read_manifest(beside) if beside else None
    return read.data if read and not read.mistakes else {}


def _computes_in_half(precision: str | None) -> bool | None:
    """Whether conversion would; None where no precision is given."""
    if precision is None:
        return None
    from builder.conversion.precision import policy

    return policy(precision).half is not None


def _known(name: str, later: Collection[str]) -> None:
    """Raise UsageError for a pass that is none, or that only conversion runs, and is not one of
    `later`.
    """
    from builder.errors import UsageError
    from builder.lowering import PIPELINE, passes_for
    from builder.manifest.suggest import did_you_mean

    names = list(dict.fromkeys([*(step.name for step in PIPELINE), *later]))
    if name in names:
        return
    for precision, half in (("fp16", True), ("fp32", False)):
        if name in (step.name for step in passes_for(half)):
            raise UsageError(
                f"{name} is conversion's, for one precision", fix=f"add --precision {precision}"
            )
    raise UsageError(f"there is no pass {name!r}", fix=did_you_mean(name, names))


def _write(lowered: Any, out: Path, *, whole: bool) -> list[Path]:
    from builder.lowering import write_sequence

    written = write_sequence(lowered.trace, out)
    if whole:  # a graph in the middle of its lowering may hold what no file can
        lowered.save(out / "lowered.pt")
        written.append(out / "lowered.pt")
    return written


def _record(record: Any) -> dict[str, Any]:
    return {
        "name": record.name,
        "nodes_before": record.nodes_before,
        "nodes_after": record.nodes_after,
        "seconds": round(record.seconds, 6),
    }


def _show(
    terminal: Terminal, lowered: Any, trace: bool, shown: Sequence[str], written: Sequence[Path]
) -> None:
    if trace:
        columns = ("pass", "before", "after", "ms")
        rows = [
            [r.name, r.nodes_before, r.nodes_after, f"{r.seconds * 1e3:.2f}"] for r in lowered.trace
        ]
        terminal.table(columns, rows, numbers=columns[1:])
    for record in lowered.trace:
        if record.name in shown:
            terminal.line(record.diff(color=_colored()) or f"{record.name} changed nothing")
    for name in sorted(set(shown) - {record.name for record in lowered.trace}):
        terminal.line(f"{name} did not run: nothing in the graph is for it")
    if written:
        terminal.line(f"{len(written)} files in {written[0].parent}")
    if not (trace or shown or written):
        terminal.line(f"# {', '.join(lowered.inputs)} -> {', '.join(lowered.outputs)}")
        terminal.line(lowered.text.rstrip())


def _colored() -> bool:
    import sys

    return may_color(sys.stdout)
