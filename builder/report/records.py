"""Stores the results of `--record` for the report: one document for each command, beside the
repository.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import builder
from builder import files
from builder.errors import EnvironmentProblem, TrtBuildError, UsageError
from builder.store import published
from builder.triton import versions
from builder.unforeseen import file_system_fix

BUILD = "build"
VERIFY = "verify"
LADDER = "ladder"
BENCH = "bench"
TUNE = "tune"
BISECT = "bisect"
KINDS = (BUILD, VERIFY, LADDER, BENCH, TUNE, BISECT)
PUBLISHED, RECORDED, COMMAND = "published", "recorded_at", "command"
"""Keys that `keep` adds to each model: the identity of the publication, the time of the record, and
the command.
"""
MEASURED = (VERIFY, BENCH)
"""Kinds whose entries are kept for each version of a model."""
SECRET = ("--header",)
"""Options whose values may be passwords or tokens."""
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def folder(repository: Path) -> Path:
    """`<repository>.results`, beside the repository: Triton treats each folder inside as a
    model.
    """
    whole = repository.resolve()
    return whole.with_name(f"{whole.name}{published.RESULTS}")


def path(repository: Path, kind: str) -> Path:
    """The path of the document of this kind, one of KINDS."""
    return folder(repository) / f"{kind}.json"


def identity(folder: Path) -> str | None:
    """The identity of the current version of a published model (builder.triton.versions.identity).

    None if trt-build published nothing there.
    """
    record = published.sidecar(folder)
    if record is None:
        return None
    return versions.identity(record)


def _identities(folder: Path) -> set[str]:
    """The identities of all versions of a published model."""
    return {
        versions.identity(version.sidecar) for version in published.versions(folder)
    }


def keep(repository: Path, kind: str, data: Mapping[str, Any]) -> Path:
    """Write the `models` of `data`, each a mapping with its `name`, into the document of this kind.

    Models of the earlier document that `data` does not name stay, and for MEASURED the entries of
    other versions that the model still has. Each model of `data` is stamped with the time, the
    command line and the identity of the publication. Raises EnvironmentProblem.
    """
    stamp = {
        RECORDED: datetime.now(timezone.utc).isoformat(timespec="seconds"),
        COMMAND: command(sys.argv[1:]),
        "trt_build": builder.__version__,
    }
    identities = {
        entry["name"]: identity(repository / entry["name"]) for entry in data["models"]
    }
    new = [
        {**entry, **stamp, PUBLISHED: identities[entry["name"]]}
        for entry in data["models"]
    ]
    file = path(repository, kind)
    other_identities: dict[str | None, set[str]] = {}
    if kind in MEASURED:
        other_identities = {
            name: _identities(repository / name) - {now}
            for name, now in identities.items()
        }
    unchanged = [
        entry
        for entry in _entries(published.read(file))
        if (name := _name(entry)) not in identities
        or entry.get(PUBLISHED) in other_identities.get(name, ())
    ]
    write(file, {**data, "models": [*unchanged, *new]})
    return file


def require_writable(file: Path) -> None:
    """Raise EnvironmentProblem if results cannot be written to `file`, before they are measured."""
    nearest = next(path for path in file.absolute().parents if path.exists())
    readable = not file.exists() or os.access(file, os.R_OK)
    if not nearest.is_dir():
        number = errno.ENOTDIR
    elif not (readable and os.access(nearest, os.W_OK | os.X_OK)):
        number = errno.EACCES
    else:
        return
    raise _unwritable(file, OSError(number, os.strerror(number)))


def _unwritable(file: Path, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"the results cannot be written: {error.strerror}",
        where=str(file),
        fix=file_system_fix(error),
    )


def carry(source: Path, target: Path, names: Sequence[str]) -> str | None:
    """Copy the MEASURED entries of the current versions of these models into the results of the
    repository `target`, where it has the same version. The newest entries of a version stay.

    Returns a warning if the results cannot be read or written: the models are published already.
    """
    try:
        _carry(source, target, names)
    except TrtBuildError as error:
        return f"the figures were not copied: {error.where}: {error.message}"
    return None


def _carry(source: Path, target: Path, names: Sequence[str]) -> None:
    for kind in MEASURED:
        there = models(target, kind)
        here = models(source, kind)
        added = []
        for name in names:
            current = identity(source / name)
            new = [
                entry for entry in here.get(name, ()) if entry.get(PUBLISHED) == current
            ]
            old = [
                entry
                for entry in there.get(name, ())
                if entry.get(PUBLISHED) == current
            ]
            if current in _identities(target / name) and _newest(new) > _newest(old):
                there[name] = [
                    entry for entry in there.get(name, ()) if entry not in old
                ]
                added += new
        if added:
            entries = [entry for entries in there.values() for entry in entries]
            document = published.read(path(target, kind)) or {"repository": str(target)}
            write(path(target, kind), {**document, "models": [*entries, *added]})


def _newest(entries: Sequence[Mapping[str, Any]]) -> str:
    """The time of the newest entry, as text that sorts by time."""
    return max((str(entry.get(RECORDED)) for entry in entries), default="")


def forget(repository: Path, names: Sequence[str]) -> str | None:
    """Remove the MEASURED entries of versions that these models no longer have.

    Returns a warning if the results cannot be read or written.
    """
    try:
        _forget(repository, names)
    except TrtBuildError as error:
        return f"the figures of removed versions stay: {error.where}: {error.message}"
    return None


def _forget(repository: Path, names: Sequence[str]) -> None:
    for kind in MEASURED:
        entries = [
            entry for known in models(repository, kind).values() for entry in known
        ]
        recorded = {entry["name"] for entry in entries}
        known = {
            name: _identities(repository / name)
            for name in recorded.intersection(names)
        }
        remaining = [
            entry
            for entry in entries
            if entry["name"] not in known
            or entry.get(PUBLISHED) in known[entry["name"]]
        ]
        if len(remaining) < len(entries):
            file = path(repository, kind)
            write(file, {**published.read(file), "models": remaining})


def figures(repository: Path, name: str) -> dict[str, list[dict[str, Any]]]:
    """What `bench --record` measured, by the identity of the version. For each protocol the load
    with the most requests per second: its rate, latencies, time and machine.

    Raises UsageError if `keep` did not write the document.
    """
    figures_by_version: dict[str, list[dict[str, Any]]] = {}
    for entry in models(repository, BENCH).get(name, ()):
        levels = entry.get("levels") or ()
        if entry.get("problem") or not levels:
            continue
        best = max(levels, key=lambda level: level["throughput"]["value"])
        latencies = {
            f"{percentile}_ms": _value(best["latency_ms"].get(percentile))
            for percentile in ("p50", "p99")
        }
        figures_by_version.setdefault(str(entry.get(PUBLISHED)), []).append(
            {
                "protocol": entry.get("protocol"),
                "memory": entry.get("memory"),
                "load": best["load"],
                "requests_per_second": _value(best["throughput"]),
                **latencies,
                **{key: entry.get(key) for key in (RECORDED, COMMAND, "host")},
            }
        )
    return figures_by_version


def _value(estimate: Any) -> float | None:
    if isinstance(estimate, dict):
        return estimate.get("value")
    return None


def command(arguments: Sequence[str]) -> str:
    """The command line in shell syntax, without values of SECRET options and without names and
    passwords in URLs.
    """
    words = []
    hide = False
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        secret = (
            f"{option}=..."
            if equals and option in SECRET
            else _LOGIN.sub("...", argument)
        )
        words.append("..." if hide else secret)
        hide = argument in SECRET
    return shlex.join(["trt-build", *words])


def models(repository: Path, kind: str) -> dict[str, list[dict[str, Any]]]:
    """The entries of each model in the document of this kind; empty if there is no document.

    Raises UsageError if `keep` did not write the document.
    """
    file = path(repository, kind)
    if not file.exists():
        return {}
    record = published.read(file)
    entries = _entries(record)
    if "models" not in record or not all(_name(entry) for entry in entries):
        raise UsageError(
            "not a document that trt-build --record wrote",
            where=str(file),
            fix="remove it, and record again",
        )
    entries_by_model: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        entries_by_model.setdefault(entry["name"], []).append(entry)
    return entries_by_model


def write(file: Path, data: Any) -> None:
    """Write the document atomically. Raises EnvironmentProblem."""
    text = json.dumps(data, indent=2, default=str) + "\n"
    write_text(file, text)


def write_text(file: Path, text: str) -> None:
    """Write the text atomically. Raises EnvironmentProblem."""
    try:
        file.parent.mkdir(exist_ok=True)
        files.write_text(file, text)
    except OSError as error:
        raise _unwritable(file, error) from error


def _entries(record: Mapping[str, Any]) -> list[Any]:
    entries = record.get("models")
    return entries if isinstance(entries, list) else []


def _name(entry: object) -> str | None:
    name = None
    if isinstance(entry, dict):
        name = entry.get("name")
    return name if isinstance(name, str) else None
