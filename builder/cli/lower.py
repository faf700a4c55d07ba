"""`trt-build lower`: print the graph after lowering or any pass, or the changes of each pass."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import frontends, lowering, torchscript
from builder.cli import options, paths
from builder.cli.command import command
from builder.cli.terminal import Terminal, may_color
from builder.errors import ManifestError, UsageError
from builder.precisions import PRECISIONS

if TYPE_CHECKING:
    from builder.lowering import LoweredGraph


@command(
    "lower",
    "trt-build lower models/net.pt --trace",
)
@click.argument("file", type=options.PATH)
@click.option(
    "--module",
    metavar="NAME",
    help="A submodule or method of the file. [default: that of the manifest]",
)
@options.flag(
    "--trace", help="Show the nodes before and after each pass, and its time."
)
@click.option(
    "--show",
    "diff_passes",
    multiple=True,
    metavar="PASS",
    help="Show the changes of this pass as a diff.",
)
@click.option("--stop-after", metavar="PASS", help="Stop after this pass.")
@options.choice(
    "--precision",
    values=PRECISIONS,
    help="Also run the passes of conversion for this precision.",
)
@options.count(
    "--unroll-limit",
    minimum=0,
    help="Unroll loops with a known trip count up to N. [default: that of the manifest, else 64]",
)
@options.path(
    "--out",
    metavar="DIR",
    help="Write the graph after each pass and lowered.pt to this folder.",
)
@options.libraries
@options.plugins
@options.confinement
def lower_command(
    terminal: Terminal,
    /,
    file: Path,
    module: str | None,
    trace: bool,
    unroll_limit: int | None,
    libraries: tuple[Path, ...],
    isolate: bool,
    **settings: Any,
) -> None:
    """Lower the model FILE and print its graph.

    With --trace, --show or --out, report the passes instead.
    """
    file, manifest = _model(file)
    if unroll_limit is None:
        unroll_limit = manifest.get("unroll_limit", 64)
    if not libraries:
        libraries = tuple(file.parent / name for name in manifest.get("libraries", ()))
    request = LowerOptions(
        file,
        module or manifest.get("module"),
        unroll_limit=unroll_limit,
        colored=may_color(sys.stdout),
        libraries=libraries,
        max_lengths=manifest.get("max_lengths", {}),
        **settings,
    )
    result = _lowered(request, manifest.get("limits", {}), isolate)
    terminal.result(
        result.data, lambda: _show(terminal, result, trace, request.diff_passes)
    )


@dataclass(frozen=True)
class LowerOptions:
    """The options of the command: what to lower, and how."""

    file: Path
    module: str | None
    diff_passes: tuple[str, ...]
    stop_after: str | None
    precision: str | None
    unroll_limit: int
    out: Path | None
    colored: bool
    libraries: tuple[Path, ...] = ()
    plugins: tuple[str, ...] = ()
    max_lengths: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """The command's result: `data` for --json, the nodes and milliseconds of each pass, and the
    requested diffs of passes that ran.
    """

    data: dict[str, Any]
    diffs: list[tuple[str, str]]


def _lowered(options: LowerOptions, limits: dict[str, Any], isolate: bool) -> Result:
    from builder.cli import isolated
    from builder.manifest import Limits

    created = options.out is not None and not options.out.exists()
    if options.out:
        paths.create_folder(options.out, "--out")
    writable = (options.out,) if options.out else ()
    try:
        return isolated.run_one(
            partial(lower_here, options),
            isolate,
            limits=Limits(**limits),
            writable=writable,
        )
    except BaseException:
        if created and options.out:
            with contextlib.suppress(OSError):  # it is not empty
                options.out.rmdir()
        raise


def lower_here(options: LowerOptions, report: Any) -> Result:
    """Lower the file in this process. Raises UsageError for an unknown pass, ModelFileError and
    LoweringError.
    """
    torchscript.plugins.load(options.plugins)
    loaded = frontends.load(options.file, options.module, libraries=options.libraries)
    half = _computes_in_half(options.precision)
    keep_text = bool(options.diff_passes or options.out)
    later = []
    if half is not None:
        later = [step.name for step in lowering.passes_for(half)]
    for name in (*options.diff_passes, *filter(None, [options.stop_after])):
        _require_pass(name, later)
    early = None if options.stop_after in later else options.stop_after
    lowered = lowering.lower(
        loaded,
        unroll_limit=options.unroll_limit,
        max_lengths=options.max_lengths,
        stop_after=early,
        keep_text=keep_text,
    )
    if half is not None and not early:
        lowered = lowering.for_precision(
            lowered, half, stop_after=options.stop_after, keep_text=keep_text
        )
    return _result(options, lowered)


def _result(options: LowerOptions, lowered: LoweredGraph) -> Result:
    written = (
        _write(lowered, options.out, whole=options.stop_after is None)
        if options.out
        else []
    )
    data = {
        "file": options.file,
        "inputs": lowered.inputs,
        "outputs": lowered.results,
        "passes": [_record(record) for record in lowered.trace],
        "graph": lowered.text,
        "written": written,
    }
    ran = [record for record in lowered.trace if record.name in options.diff_passes]
    return Result(
        data, [(record.name, record.diff(color=options.colored)) for record in ran]
    )


def _model(path: Path) -> tuple[Path, dict[str, Any]]:
    """The model file at `path`, which may also be its manifest or its folder, and the manifest's
    keys; empty if it is missing or invalid. Raises UsageError without a file, or for several.
    """
    from builder.manifest import folder, loading

    models = folder.find_models(path)
    if len(models) > 1:
        names = ", ".join(str(files.file) for files in models)
        raise UsageError(f"{path} has {len(models)} models", fix=f"use one of {names}")
    (files,) = models
    if files.model is None:
        raise ManifestError(list(folder.mistakes(models)))
    read = loading.read_manifest(files.manifest) if files.manifest else None
    return files.model, read.data if read and not read.mistakes else {}


def _computes_in_half(precision: str | None) -> bool | None:
    """Whether conversion computes in half precision; None without a precision."""
    if precision is None:
        return None
    from builder.conversion import policy

    return policy(precision).half is not None


def _require_pass(name: str, later: Collection[str]) -> None:
    """Raise UsageError for a name that is not a pass, or that is a pass of conversion outside
    `later`.
    """
    from builder.manifest import did_you_mean

    names = list(
        dict.fromkeys(
            [
                *lowering.FIRST_STEPS,
                *(step.name for step in lowering.every_pass()),
                *later,
            ]
        )
    )
    if name in names:
        return
    for precision, half in (("fp16", True), ("fp32", False)):
        if name in (step.name for step in lowering.passes_for(half)):
            raise UsageError(
                f"{name} is conversion's, for one precision",
                fix=f"add --precision {precision}",
            )
    raise UsageError(f"there is no pass {name!r}", fix=did_you_mean(name, names))


def _write(lowered: Any, out: Path, *, whole: bool) -> list[Path]:
    written = lowering.write_sequence(lowered.trace, out)
    saved = out / "lowered.pt"
    if whole:  # a graph in the middle of its lowering may hold what no file can
        lowered.save(saved)
        written.append(saved)
    else:
        saved.unlink(missing_ok=True)
    return written


def _record(record: Any) -> dict[str, Any]:
    return {
        "name": record.name,
        "nodes_before": record.nodes_before,
        "nodes_after": record.nodes_after,
        "seconds": round(record.seconds, 6),
    }


def _show(
    terminal: Terminal, result: Result, trace: bool, diff_passes: Sequence[str]
) -> None:
    data = result.data
    written = result.data["written"]
    if trace:
        columns = ("pass", "before", "after", "ms")
        rows = [
            [
                entry["name"],
                entry["nodes_before"],
                entry["nodes_after"],
                f"{entry['seconds'] * 1e3:.2f}",
            ]
            for entry in data["passes"]
        ]
        terminal.table(columns, rows, numbers=columns[1:])
    for name, diff in result.diffs:
        terminal.styled(diff or f"{name} changed nothing")
    for name in sorted(set(diff_passes) - {entry["name"] for entry in data["passes"]}):
        terminal.line(f"{name} did not run: the graph has no node that it rewrites")
    if written:
        terminal.line(f"{len(written)} files in {written[0].parent}")
    if not (trace or diff_passes or written):
        terminal.line(f"# {', '.join(data['inputs'])} -> {', '.join(data['outputs'])}")
        terminal.line(data["graph"].rstrip())
