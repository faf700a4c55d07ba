"""Collects the facts of each model of a repository from the published files and the records of
build, verify, bench, tune and bisect.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import builder
from builder.errors import TrtBuildError, UsageError
from builder.report import changes, records, snippets
from builder.store import SIDECAR, published, shaped
from builder.triton import history

if TYPE_CHECKING:
    from builder.triton import Entry


PASSED = "passed"
FAILED = "failed"
UNVERIFIED = "not verified"

RESULT: Mapping[str, Any] = {
    **dict.fromkeys(("layers", "plan_bytes", "parity", "plan_executed", "quantized")),
    **dict.fromkeys(("layout", "layout_reason", "because", "state"), ""),
    **dict.fromkeys(("warnings", "segments", "lowering", "operators", "dtypes"), ()),
    "seconds": {},
}
"""Defaults for fields that older builds did not record."""

LISTS = ("inputs", "outputs", "profiles", "state")
MAPPINGS = ("tolerance", "batching", "source", "versions")
"""Keys of trt-build.json that a report copies, empty if they are missing."""

Facts = dict[str, Any]
Records = dict[str, dict[str, list[Facts]]]


def gather(
    repository: Path,
    only: Sequence[str] = (),
    *,
    since: Mapping[str, Any] | None = None,
) -> Facts:
    """Return the report of a repository as JSON-able data; docs/report.md describes it.

    `since` is an earlier report from changes.read_old.

    Raises UsageError if there is no such repository, if a name in `only` has no model, or if
    trt-build did not write a record.
    """
    entries_by_kind = {kind: records.models(repository, kind) for kind in records.KINDS}
    names = _names(repository, only, entries_by_kind)
    models = [
        _finite(_model(repository / name, name, entries_by_kind)) for name in names
    ]
    removed = []
    if since is not None:
        removed = changes.add_changes(models, since)
    return {
        "format": changes.FORMAT,
        "repository": repository.resolve().name,
        "generated_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "trt_build": builder.__version__,
        "summary": _summary(models),
        "since": None if since is None else since.get("generated_at"),
        "removed": [] if only else removed,
        "others": [] if only else _others(repository),
        "models": models,
    }


def _names(
    repository: Path, only: Sequence[str], entries_by_kind: Records
) -> list[str]:
    """The names of published models, and of those that a recorded build could not publish."""
    published.require_repository(repository)
    built = entries_by_kind[records.BUILD]
    failed = {name for name, (result, *_) in built.items() if not result.get("ok")}
    try:
        known = {folder.name for folder in history.models(repository)}
    except UsageError:
        if not failed:
            raise
        known = set()
    if unknown := set(only) - known - failed:
        history.models(repository, sorted(unknown))  # raises with a list of the models
    return sorted(set(only) or known | failed)


def _others(repository: Path) -> list[str]:
    """The folders that Triton treats as models but trt-build did not publish."""
    folders = (folder for folder in repository.iterdir() if folder.is_dir())
    return sorted(folder.name for folder in folders if not (folder / SIDECAR).is_file())


def _summary(models: Sequence[Facts]) -> Facts:
    states = Counter(model["status"] for model in models)
    answered_by = Counter(model["answered_by"] or "unknown" for model in models)
    return {
        "models": len(models),
        **{state: states[state] for state in (PASSED, FAILED, UNVERIFIED)},
        "answered_by": dict(sorted(answered_by.items())),
    }


def _model(folder: Path, name: str, entries_by_kind: Records) -> Facts:
    """Collect everything about one model. An unreadable part is a problem of this model only."""
    entries = {kind: entries_by_kind[kind].get(name, []) for kind in records.KINDS}
    empty = {
        **_published({}, []),
        **_recorded({kind: [] for kind in records.KINDS}, None),
    }
    try:
        with shaped(folder):
            record = published.sidecar(folder) or {}
            facts = _published(record, history.history(folder) if record else [])
            facts |= {"graph": _graph(folder, record)}
            facts |= {**_files(folder, record), "snippets": snippets.of(name, record)}
    except TrtBuildError as error:
        unread = {**empty, "unreadable": [error.message], "bytes": None}
        unread |= {"steps": [], "files": {}, "graph": []}
        return _judged({"name": name, **unread, "snippets": {}})
    try:
        with shaped(records.folder(folder.parent)):
            facts |= _recorded(entries, records.identity(folder))
            return _judged({"name": name, **facts})
    except UsageError as error:
        raise UsageError(
            f"the records of {name!r} are not as trt-build writes them: {error.message}",
            where=error.where,
            fix="remove the file, and record again with --record",
        ) from error


def _published(record: Mapping[str, Any], versions: Sequence[Entry]) -> Facts:
    """Return the contents of trt-build.json of the current version, and the list of all
    versions.
    """
    result = record.get(published.RESULT) or {}
    entries = [{**asdict(entry), "files": len(entry.files)} for entry in versions]
    return {
        "is_published": bool(record),
        "version": published.number_of(record) if record else None,
        "published_at": record.get("published_at"),
        "precision": record.get("precision") or result.get("precision"),
        "serve_as": record.get("serve_as"),
        **{key: list(record.get(key) or ()) for key in LISTS},
        **{key: dict(record.get(key) or {}) for key in MAPPINGS},
        "result": {
            **RESULT,
            **{key: value for key, value in result.items() if value is not None},
        },
        "history": entries,
        "unreadable": [],
    }


def _files(folder: Path, record: Mapping[str, Any]) -> Facts:
    """Return the size in bytes of the current version with its steps, and the digests."""
    files = published.versions(folder)[0].files if record else {}
    sizes = {
        name: path.stat().st_size for name, path in files.items() if path.is_file()
    }
    steps = published.recorded_steps(record)
    of_steps = 0
    for step in steps:
        if Path(step).name != step:
            continue
        step_versions = published.versions(folder.parent / step)
        if step_versions:
            paths = step_versions[0].files.values()
            of_steps += sum(path.stat().st_size for path in paths if path.is_file())
    return {
        "bytes": sum(sizes.values()) + of_steps if files else None,
        "steps": steps,
        "files": dict(record.get("files") or {}),
    }


def _graph(folder: Path, record: Mapping[str, Any]) -> list[Facts]:
    """Return the segments of a fused model or the steps of an ensemble, in order; empty for a model
    with one plan.
    """
    facts = published.read(published.current_folder(folder) / "plan.json")
    steps = [
        step for step in record.get(published.STEPS) or () if Path(step).name == step
    ]
    if steps:
        return [_step(folder.parent / step) for step in steps]
    return [
        {
            "kind": segment["kind"],
            "label": f"{number}: {_runs(segment)}",
            "inputs": _tensor_names(segment["inputs"]),
            "outputs": _tensor_names(segment["outputs"]),
        }
        for number, segment in enumerate(facts.get("segments") or ())
    ]


def _runs(segment: Mapping[str, Any]) -> str:
    plan = segment.get("plan") or {}
    if segment["kind"] != "tensorrt":
        if segment["kind"] == "torch":
            return "torch"
        return str(segment["kind"])
    if "layers" in plan:
        return f"TensorRT, {plan['layers']} layers"
    return "TensorRT"


def _step(folder: Path) -> Facts:
    record = published.read(folder / SIDECAR)
    plan = any(name.endswith(".plan") for name in record.get("files") or ())
    return {
        "kind": "tensorrt" if plan else "torch",
        "label": str(record.get("step") or folder.name),
        "inputs": _tensor_names(record.get("inputs") or ()),
        "outputs": _tensor_names(record.get("outputs") or ()),
    }


def _tensor_names(tensors: Iterable[Facts]) -> list[str]:
    return [tensor["name"] for tensor in tensors]


def _recorded(entries: Mapping[str, Sequence[Facts]], identity: str | None) -> Facts:
    """Return the records of the current version, else the newest. `current` is False if another
    version was measured.
    """
    stamped = {
        kind: [
            {**entry, "current": entry.get(records.PUBLISHED) == identity}
            for entry in _of_one_version(kind_entries, identity)
        ]
        for kind, kind_entries in entries.items()
    }
    build = stamped.pop(records.BUILD)
    verify = stamped.pop(records.VERIFY)
    return {
        "build": build[0] if build else None,
        "verify": _verified(verify[0]) if verify else None,
        **stamped,
    }


def _of_one_version(entries: Sequence[Facts], identity: str | None) -> list[Facts]:
    """The entries of this version, else those of the version that was measured last."""
    of_version = [
        entry for entry in entries if entry.get(records.PUBLISHED) == identity
    ]
    last = None
    if entries:
        last = entries[-1].get(records.PUBLISHED)
    return of_version or [
        entry for entry in entries if entry.get(records.PUBLISHED) == last
    ]


def _verified(record: Facts) -> Facts:
    """Return the record of verify with its goldens sorted by error."""
    goldens = [
        {
            "golden": result["golden"],
            "protocol": result["protocol"],
            "passed": result["passed"],
            "problems": list(result["problems"]),
            "share": _largest((result["comparison"] or {}).get("outputs") or ()),
            "median_ms": result["median_ms"],
        }
        for result in record["results"]
    ]
    goldens.sort(key=lambda result: (result["passed"], -(result["share"] or 0.0)))
    return {
        **{key: value for key, value in record.items() if key != "results"},
        "goldens": goldens,
    }


def _largest(outputs: Sequence[Facts]) -> float | None:
    shares = [output["share"] for output in outputs if output.get("share") is not None]
    return max(shares, default=None)


def _judged(facts: Facts) -> Facts:
    """Return the facts with the figures of the overview."""
    problems = list(_problems(facts))
    verify = facts["verify"]
    build = facts["build"]
    checked = verify is not None and verify["current"]
    passed = PASSED if checked else UNVERIFIED
    parity = facts["result"].get("parity") or {}
    seconds = (build or {}).get("seconds") or facts["result"].get("seconds") or {}
    share, origin = (
        (verify["share"], "endpoint") if checked else (parity.get("share"), "build")
    )
    return {
        **facts,
        "status": FAILED if problems else passed,
        "problems": problems,
        "answered_by": verify["answered_by"] if checked else None,
        "device": verify["device"] if checked else None,
        "share": share,
        "share_from": origin if share is not None else None,
        "latency": _latency(facts),
        "plan_bytes": facts["result"].get("plan_bytes"),
        "phases": dict(seconds),
        "build_seconds": sum(seconds.values()) if seconds else None,
        "changes": None,
    }


_FAILURES = {
    "ladder": ("breaks_at", "ladder: the first step that differs is {breaks_at}"),
    "bisect": ("problem", "bisect: {problem}"),
    "bench": ("problem", "bench: {protocol}: {problem}"),
}
"""By the kind of a record: the key that is set if it failed, and the text of the problem."""


def _problems(facts: Facts) -> Iterator[str]:
    yield from facts["unreadable"]
    build = facts["build"]
    if build is not None and build["current"] and not build.get("ok"):
        yield f"build: {(build.get('error') or {}).get('message') or 'failed'}"
    for entry in facts["history"]:
        if entry["damaged"]:
            yield f"version {entry['number']} is damaged: {entry['damaged']}"
    if facts["verify"] is not None and facts["verify"]["current"]:
        yield from _verify_problems(facts["verify"])
    for kind, (key, text) in _FAILURES.items():
        for entry in facts[kind]:
            if entry["current"] and entry.get(key):
                yield text.format(**entry)


def _verify_problems(verify: Facts) -> Iterator[str]:
    yield from (f"verify: {text}" for text in verify["problems"])
    failed = [entry for entry in verify["goldens"] if not entry["passed"]]
    if failed:
        first = failed[0]
        record = "; ".join(first["problems"])
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        yield f"verify: {first['golden']}, {first['protocol']}: {record}{more}"


def _latency(facts: Facts) -> Facts | None:
    """Return p50 and p99 in milliseconds: of the lowest load of bench, else of verify's few
    requests.
    """
    for entry in facts["bench"]:
        if entry["current"] and entry["levels"]:
            level = entry["levels"][0]
            known = level["latency_ms"]
            p50 = known.get("p50", {}).get("value")
            p99 = known.get("p99", {}).get("value")
            return {
                "p50_ms": p50,
                "p99_ms": p99,
                "from": f"bench {entry['protocol']} {level['load']}",
            }
    verify = facts["verify"]
    if verify is not None and verify["current"] and verify["p50_ms"] is not None:
        return {
            "p50_ms": verify["p50_ms"],
            "p99_ms": verify["p99_ms"],
            "from": "verify",
        }
    return None


def _finite(value: object) -> Any:
    """Replace infinities and NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
