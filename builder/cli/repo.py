"""`trt-build repo`: build a model repository from a folder of models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from builder import deployment, engine, processes, report, repository, store, triton
from builder.cli import build_options, options, search
from builder.cli.command import command
from builder.cli.doctor import note_preflight
from builder.cli.terminal import Terminal, command_line
from builder.report import percent, size

if TYPE_CHECKING:
    from builder.deployment import Finding as Preflight
    from builder.repository import ModelResult, Search

NOT_PUBLISHED = ("unchanged", "edited")
"""Results of models that this command did not publish."""
COLUMNS = (
    "model",
    "result",
    "segments",
    "precision",
    "of tolerance",
    "layers",
    "plan",
    "s",
)


@command(
    "repo",
    "trt-build repo models --out model_repository",
    "trt-build repo models/net.pt --out model_repository --precision fp16",
)
@build_options.request_options
@options.require_sandbox
@options.choice(
    "--log-level",
    values=["info", "graph"],
    default="info",
    show_default=False,
    help=(
        "graph: write each model's graph before and after every pass to DIR.graphs beside the "
        "repository. [default: info]"
    ),
)
@options.flag(
    "--search-precision",
    help=(
        "First find the cheapest precision within the tolerance of each model, and write it into "
        "the manifests."
    ),
)
@click.option(
    "--keep-edits",
    "edits",
    flag_value="keep",
    help="Keep manual edits of config.pbtxt.",
)
@click.option(
    "--overwrite-edits",
    "edits",
    flag_value="overwrite",
    help="Discard manual edits and additions in published models.",
)
@options.accept_incompatible
@options.write_env
@options.record
@options.sign
@options.flag(
    "--sbom",
    help="Write the packages of this environment to DIR.cdx.json beside the repository "
    "(CycloneDX).",
)
@options.flag("--rebuild", help="Build every model again, even if unchanged.")
@options.count(
    "--jobs",
    minimum=0,
    default=0,
    show_default=False,
    help="Models built in parallel. [default: as many as the machine allows]",
)
@click.option(
    "--isolate/--no-isolate",
    default=True,
    help="Build each model in a separate process. [default: --isolate]",
)
@click.option(
    "--out",
    type=options.CHANGED_PATH_OR_URL,
    required=True,
    metavar="DIR",
    help="The model repository: a folder or a URL such as s3://bucket/repository. Created if "
    "missing.",
)
@click.option(
    "--farm",
    "farm_file",
    type=options.PATH,
    metavar="FILE",
    help=(
        "Build on the Ray cluster of this farm file, into DIR/<target> for each target. local: a "
        "cluster on this machine."
    ),
)
@options.flag(
    "--require-all",
    help="With --farm: publish nothing unless every model is built for every target.",
)
def repo_command(
    terminal: Terminal,
    /,
    models: Path,
    out: Path,
    log_level: str,
    require_sandbox: bool,
    sbom: bool,
    record: bool,
    farm_file: Path | None,
    require_all: bool,
    **settings: Any,
) -> int:
    """Build every model of MODELS (a folder, a model file or a manifest) into the repository DIR.

    A model is published only if its network matches the original module. If a model fails, the
    others are still built. Unchanged models are not built again.
    """
    context = click.get_current_context()
    if farm_file is not None:
        from builder.cli import repo_farm

        return repo_farm.run(context)
    if require_all:
        raise click.UsageError("--require-all is for --farm", context)
    if require_sandbox:
        processes.require(settings["isolate"])
    extra = ExtraFiles(log_level == "graph", sbom, record)
    return _run(terminal, models, out, settings, extra)


@dataclass(frozen=True)
class ExtraFiles:
    """What is also written beside the repository: the graphs of each pass, a bill of materials, and
    the results for a report.
    """

    graphs: bool
    sbom: bool
    record: bool


def _run(
    terminal: Terminal,
    models: Path,
    out: Path,
    settings: dict[str, Any],
    extra: ExtraFiles,
) -> int:
    """Build the models and show the results. Returns the exit code."""
    options.note_unread(terminal, models)
    if extra.record:
        options.require_writable_results(out, "build")
    used = _used_flavor(terminal, settings["flavor"])
    search_precision = settings.pop("search_precision")
    settings |= {
        "options": build_options.take(settings),
        "inputs": options.parsed(settings["inputs"]),
        "edits": settings["edits"] or "report",
        "graphs": _sibling(out, "graphs") if extra.graphs else None,
    }
    results, searches = _built(terminal, models, out, settings, search_precision)
    if settings["write_env"] and any(result.ok for result in results):
        options.note_env(terminal, out.resolve().parent / ".env")
    code = exit_code(results)
    data = {"repository": out, "ok": code == 0, "flavor": used}
    data["models"] = list(map(as_dict, results))
    data["without_source"] = options.without_source(terminal, models, out)
    if search_precision:
        data["search"] = list(map(as_dict, searches))
    _report(terminal, out, results, data, extra)
    return code


def _report(
    terminal: Terminal,
    out: Path,
    results: list[ModelResult],
    data: dict[str, Any],
    extra: ExtraFiles,
) -> None:
    """Show the results and the findings of preflight, which are added to `data`. Write the bill of
    materials and keep the data beside the repository, if requested.
    """
    for result in results:
        terminal.trace(result.name, result.error.traceback if result.error else "")
    if extra.sbom:
        data["sbom"] = triton.sbom.write(_sibling(out, "cdx.json"))
    unfit = _preflight(out, results)
    data["preflight"] = [vars(finding) for finding in unfit]
    terminal.note_if_any(_update_records(out, data, results, extra.record))
    terminal.result(data, lambda: show(terminal, results, out))
    note_preflight(terminal, unfit)
    if extra.graphs:
        terminal.note(f"the graphs, pass by pass, are in {_sibling(out, 'graphs')}")


def _update_records(
    out: Path, data: dict[str, Any], results: Sequence[ModelResult], record: bool
) -> str | None:
    """Keep the results if requested, and remove the figures of removed versions. Returns a
    warning if these cannot be removed.
    """
    if record:
        report.records.keep(out, report.records.BUILD, data)
    if not report.records.folder(out).is_dir():  # without it, no sidecar has to be read
        return None
    ok = [result.name for result in results if result.ok]
    with_versions = [name for name in ok if triton.versions.policy_of(out / name).keep]
    return report.records.forget(out, with_versions)


def _used_flavor(terminal: Terminal, requested: str) -> dict[str, str | None]:
    """The TensorRT that builds: its name, its version, and why it was chosen."""
    name = engine.flavor.resolve(requested)
    version = engine.flavor.installed_version(name)
    reason = engine.flavor.because(requested)
    if requested == "auto":
        terminal.hint(f"{name} {version}: {reason}")
    return {"name": name, "version": version, "because": reason}


def _sibling(out: Path, suffix: str) -> Path:
    """`DIR.suffix`, beside the repository DIR."""
    whole = out.resolve()
    return whole.with_name(f"{whole.name}.{suffix}")


def _built(
    terminal: Terminal,
    models: Path,
    out: Path,
    settings: dict[str, Any],
    search_precision: bool,
) -> tuple[list[ModelResult], list[Search]]:
    """The results by name, and those of the search for precisions. A model whose search failed is
    not built.
    """
    searches: list[Search] = []
    with terminal.progress() as progress:
        if search_precision:
            searches = search.run(terminal, models, out, settings, progress)
        results = search.failures(searches)
        if results:
            settings["only"] = tuple(
                model.name for model in searches if not model.error
            )
        if not results or settings["only"]:
            results += repository.build_repository(
                models, out, progress=progress, **settings
            )
    return sorted(results, key=lambda result: result.name), searches


def _preflight(out: Path, results: list[ModelResult]) -> list[Preflight]:
    """Print what prevents the target server from loading the built models.

    Unchanged models are not checked again, because that imports numpy and protobuf.
    """
    built = [
        result.name
        for result in results
        if result.ok and result.state not in NOT_PUBLISHED
    ]
    if not built:
        return []

    server = deployment.expected_server(out) if out.is_dir() else None
    if server is None:
        return []
    return deployment.preflight(out, server, built, digests=False)


def exit_code(results: list[ModelResult]) -> int:
    """0 without failures, the exit code if all failures share one (3: all of parity), else 1."""
    return common_exit_code(
        result.error.exit_code if result.error else 1
        for result in results
        if not result.ok
    )


def common_exit_code(failures: Iterable[int]) -> int:
    """0 without failures, the exit code that all share, else 1."""
    codes = set(failures)
    if len(codes) > 1:
        return 1
    return codes.pop() if codes else 0


def as_dict(result: ModelResult | Search) -> dict[str, Any]:
    """The result as JSON data."""
    return {**vars(result), "error": result.error.as_dict() if result.error else None}


def show(terminal: Terminal, results: list[ModelResult], out: Path) -> None:
    """Print the table of models, then the errors, and the next command."""
    terminal.table(COLUMNS, [_row(result) for result in results], numbers=COLUMNS[4:])
    for result in results:
        for warning in result.warnings:
            terminal.note(f"{result.name}: warning: {warning}")
        if result.quantized:
            terminal.note(f"{result.name}: {result.quantized['summary']}")
        if result.error and not terminal.as_json:
            terminal.failure(f"{result.name}: {result.error}", None)
        published = result.ok and result.state not in NOT_PUBLISHED
        if published and result.because not in ("", store.UNPUBLISHED):
            terminal.hint(f"{result.name}: rebuilt because: {result.because}")
    built = [result for result in results if result.ok]
    unexecuted = [result.name for result in built if result.plan_executed is False]
    if unexecuted:
        terminal.line(
            f"plan not executed: {', '.join(unexecuted)}: no plan of this TensorRT runs on this"
            " machine, so torch evaluated the networks"
        )
    terminal.line(f"{len(built)} of {len(results)} models in {out}")
    if built and not terminal.quiet:
        verify = command_line("trt-build", "verify", out, "--serve")
        terminal.line(f"next: {verify}")


def _row(result: ModelResult) -> list[str]:
    seconds = f"{sum(result.seconds.values()):.1f}"
    if not result.ok:
        return [result.name, "FAILED", *[""] * 5, seconds]
    share = (result.parity or {}).get("share")
    return [
        result.name,
        result.state,
        segment_counts(result.segments),
        result.precision,
        percent(share),
        str(result.layers),
        size(result.plan_bytes),
        seconds,
    ]


def segment_counts(segments: Sequence[str]) -> str:
    """`2 TensorRT, 1 torch` for a partitioned model; `1 TensorRT` for one plan."""
    counts = Counter(segments or ("tensorrt",))
    names = {"tensorrt": "TensorRT"}
    return ", ".join(
        f"{count} {names.get(kind, kind)}" for kind, count in counts.items()
    )
