"""`trt-build check`: everything but the build."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from builder.cli import options
from builder.cli.command import Command, describe
from builder.cli.terminal import Progress, Terminal
from builder.errors import EnvironmentProblem, ParityError, TrtBuildError, UnsupportedOperators


@click.command("check", cls=Command, short_help="Do everything but the build, and say what it would give.")
@options.models_options
@click.option("--paranoid", is_flag=True, help="Execute the graphs and the network on seeded inputs and compare.")
@click.option("--config/--no-config", "with_config", default=True, help="Show the config.pbtxt that would be written.")
@click.pass_obj
def check_command(
    terminal: Terminal,
    /,
    models: Path,
    inputs: tuple[str, ...],
    flavour: str,
    serve_as: str,
    paranoid: bool,
    with_config: bool,
    **chosen: Any,
) -> int:
    """Read, lower and convert every model of MODELS; say which operators TensorRT cannot take and what would be served.

    Nothing is compiled and nothing is written.
    """
    from builder import manifest
    from builder.engine import flavour as flavours

    specs = manifest.load(models, inputs=options.parsed(inputs), **chosen)
    flavours.select(flavour)
    with terminal.progress() as progress:
        reports = [examine(spec, serve_as, paranoid, progress) for spec in specs]
    failed = [report["error"]["exit_code"] for report in reports if report["error"]]
    terminal.result({"ok": not failed, "models": reports}, lambda: show(terminal, reports, with_config))
    return (failed[0] if len(set(failed)) == 1 else 1) if failed else 0


def examine(spec: Any, serve_as: str, paranoid: bool, progress: Progress) -> dict[str, Any]:
    """What is found of one model; `error` tells where it ended."""
    report: dict[str, Any] = {"name": spec.name, "file": str(spec.path), "error": None, "config": None}
    try:
        for phase in (_read, _lower, _convert, _compare, _config):
            progress(spec.name, phase.__name__.strip("_"))
            phase(report, spec, serve_as, paranoid)
    except EnvironmentProblem:
        raise
    except TrtBuildError as error:
        report["error"] = describe(error)
        if isinstance(error, UnsupportedOperators):
            report["operators"]["unsupported"] = [vars(operator) for operator in error.operators]
            report["fallback"] = _fallback(report["_lowered"], spec)
    for key in [key for key in report if key.startswith("_")]:
        del report[key]  # objects that the phases hand on
    return report


def _fallback(lowered: Any, spec: Any) -> dict[str, Any] | None:
    """What would run where, if what TensorRT cannot take stayed in torch; None where that cannot be said."""
    from builder import partition

    try:
        parts = partition.split(lowered, spec.inputs, spec.profiles, spec.fallback)
    except TrtBuildError:
        return None
    segments = [{"runs_in": part.kind, "nodes": part.nodes, "flops": part.flops} for part in parts.segments]
    return {"summary": parts.summary(), "segments": segments}


def _read(report: dict[str, Any], spec: Any, serve_as: str, paranoid: bool) -> None:
    from builder import torchscript

    report["_module"] = torchscript.load(spec.path, spec.module, libraries=spec.libraries)


def _lower(report: dict[str, Any], spec: Any, serve_as: str, paranoid: bool) -> None:
    from builder import lowering

    examples = _examples(spec) if paranoid else None
    lowered = lowering.lower(report["_module"], unroll_limit=spec.unroll_limit, paranoid=examples)
    report["_lowered"] = lowered
    report["passes"] = len(lowered.trace)
    report["operators"] = {"used": dict(sorted(used(lowered.graph).items())), "unsupported": []}


def _examples(spec: Any) -> tuple[Any, ...]:
    """The inputs of the first golden: values that the module is known to take."""
    from builder.parity import inputs

    sizes = inputs.sizes_of(spec.profiles[0])["opt"]
    return tuple(inputs.draw(spec.inputs, sizes, next(inputs.styles(spec)), seed=0))


def used(block: Any) -> Counter[str]:
    """How often each operator stands in the graph, inner blocks included."""
    found: Counter[str] = Counter()
    for node in block.nodes():
        if node.kind().startswith("aten::"):
            found[node.kind()] += 1
        for inner in node.blocks():
            found += used(inner)
    return found


def _convert(report: dict[str, Any], spec: Any, serve_as: str, paranoid: bool) -> None:
    from builder import conversion

    names = spec.outputs or report["_lowered"].outputs
    converted = conversion.convert(
        report["_lowered"], spec.inputs, precision=spec.precision, profiles=spec.profiles, output_names=names
    )
    report["_conversion"] = converted
    report["layers"] = converted.network.num_layers
    report["warnings"] = list(converted.warnings)


def _compare(report: dict[str, Any], spec: Any, serve_as: str, paranoid: bool) -> None:
    """With --paranoid: the lowered graph, and the network evaluated on the CPU, against the original module."""
    if paranoid:
        from builder import parity, repository

        goldens = parity.record(report["_module"], spec, report["_conversion"].outputs)
        for golden in goldens:
            _check_lowered(report["_lowered"], golden, spec)
        repository.check_reference(report["_conversion"], goldens, spec)


def _check_lowered(lowered: Any, golden: Any, spec: Any) -> None:
    from builder import parity
    from builder.parity.recording import to_numpy, to_torch

    answers = lowered.run(*(to_torch(array) for array in golden.inputs.values()))
    answer = {name: to_numpy(tensor) for name, tensor in zip(golden.outputs, answers, strict=True)}
    comparison = parity.compare(answer, golden, spec.tolerance)
    if not comparison.passed:
        message = f"golden {golden.name}: the lowered graph differs from the module: {'; '.join(comparison.problems)}"
        raise ParityError(message, fix="this is a defect of a pass: please report it; `trt-build lower --trace` helps")


def _config(report: dict[str, Any], spec: Any, serve_as: str, paranoid: bool) -> None:
    from dataclasses import replace

    from builder import engine, repository, triton
    from builder.engine.build import plan_facts

    converted = report["_conversion"]
    artifact = triton.ModelArtifact(
        spec=replace(spec, inputs=converted.inputs),
        inputs=repository._endpoints(converted.network, "input"),
        outputs=repository._endpoints(converted.network, "output"),
        profiles=converted.profiles,
        plan=b"not built",
        plan_facts=plan_facts(converted, engine.BuildOptions(), b"", 0.0),
        lowered=b"",
        serve_as=serve_as,
    )
    message = triton.config(artifact)
    for unknown in ("plan_sha256", "lowered_sha256"):
        message.parameters.pop(f"trt_build.{unknown}", None)
    report["config"] = triton.config_text(message)


def show(terminal: Terminal, reports: list[dict[str, Any]], with_config: bool) -> None:
    """A table, then for each model what stands against it or the config that it would have."""
    columns = ("model", "result", "passes", "operators", "unsupported", "layers")
    terminal.table(columns, [_row(report) for report in reports], numbers=columns[2:])
    for report in reports:
        for warning in report.get("warnings", ()):
            terminal.line(f"{report['name']}: warning: {warning}")
        if report["error"]:
            terminal.line(f"\n{report['name']}: {_words(report['error'])}", color="red")
            if report.get("fallback"):
                terminal.line(f"  with these in torch: {report['fallback']['summary']}")
        elif with_config:
            terminal.line(f"\n{report['name']}/config.pbtxt", bold=True)
            terminal.line(report["config"].rstrip())


def _words(error: dict[str, Any]) -> str:
    lines = [error["message"], *(f"  {key + ':':6} {error[key]}" for key in ("where", "fix") if key in error)]
    return "\n".join(lines)


def _row(report: dict[str, Any]) -> list[object]:
    operators = report.get("operators")
    return [
        report["name"],
        "FAILED" if report["error"] else "ok",
        report.get("passes", ""),
        sum(operators["used"].values()) if operators else "",
        len(operators["unsupported"]) if operators else "",
        report.get("layers", ""),
    ]
