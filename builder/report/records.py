"""Stores the results of `--record` for the report: one document for each command, beside the
repository.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import builder
from builder.errors import EnvironmentProblem, UsageError
from builder.store import digest, published

BUILD, VERIFY, LADDER, BENCH, TUNE, BISECT = "build", "verify", "ladder", "bench", "tune", "bisect"
KINDS = (BUILD, VERIFY, LADDER, BENCH, TUNE, BISECT)
PUBLISHED, RECORDED, COMMAND = "published", "recorded_at", "command"
"""Keys that `keep` adds to each model: the identity of the publication, the time of the record, and
the command.
"""
SECRET = ("--header",)
"""Options whose values may be passwords or tokens."""
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")


def folder(repository: Path) -> Path:
    """`<repository>.results`, beside the repository: Triton treats each folder inside as a
    model.
    """
    whole = repository.resolve()
    return whole.with_name(f"{whole.name}.results")


def path(repository: Path, kind: str) -> Path:
    """The path of the document of this kind, one of KINDS."""
    return folder(repository) / f"{kind}.json"


def identity(folder: Path) -> str | None:
    """The SHA-256 over files, steps and tolerance of the current version of a published model.

    None if trt-build published nothing there. Edits of a config do not change it.
    """
    record = published.sidecar(folder)
    if record is None:
        return None
    return digest([record.get(key) for key in ("files", published.SEALS, "tolerance")])


def keep(repository: Path, kind: str, data: Mapping[str, Any]) -> Path:
    """Write the `models` of `data`, each a mapping with its `name`, into the document of this kind.

    Models of the earlier document that `data` does not name stay. Each model of `data` is stamped
    with the time, the command line and the identity of the publication. Raises EnvironmentProblem.
    """
    stamp = {
        RECORDED: datetime.now(timezone.utc).isoformat(timespec="seconds"),
        COMMAND: command(sys.argv[1:]),
        "trt_build": builder.__version__,
    }
    identities = {one["name"]: identity(repository / one["name"]) for one in data["models"]}
    new = [{**one, **stamp, PUBLISHED: identities[one["name"]]} for one in data["models"]]
    file = path(repository, kind)
    before = _entries(published.read(file))
    kept = [one for one in before if _name(one) not in identities]
    write(file, {**data, "models": [*kept, *new]})
    return file


def command(arguments: Sequence[str]) -> str:
    """The command line in shell syntax, without values of SECRET options and without names and
    passwords in URLs.
    """
    shown, hide = [], False
    for one in arguments:
        option, equals, _ = one.partition("=")
        secret = f"{option}=..." if equals and option in SECRET else _LOGIN.sub("...", one)
        shown.append("..." if hide else secret)
        hide = one in SECRET
    return shlex.join(["trt-build", *shown])


def models(repository: Path, kind: str) -> dict[str, list[dict[str, Any]]]:
    """The entries of each model in the document of this kind; empty if there is no document.

    Raises UsageError if `keep` did not write the document.
    """
    file = path(repository, kind)
    if not file.exists():
        return {}
    record = published.read(file)
    entries = _entries(record)
    if "models" not in record or not all(_name(one) for one in entries):
        raise UsageError(
            "not a document that trt-build --record wrote",
            where=str(file),
            fix="remove it, and record again",
        )
    found: dict[str, list[dict[str, Any]]] = {}
    for one in entries:
        found.setdefault(one["name"], []).append(one)
    return found


def write(file: Path, data: Any) -> None:
    """Write the document atomically. Raises EnvironmentProblem."""
    text = json.dumps(data, indent=2, default=str) + "\n"
    write_text(file, text)


def write_text(file: Path, text: str) -> None:
    """Write the text atomically. Raises EnvironmentProblem."""
    try:
        file.parent.mkdir(exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as staged:
                staged.write(text)
            Path(name).chmod(0o644)
            os.replace(name, file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise EnvironmentProblem(
            f"the results cannot be written: {error.strerror}", where=str(file)
        ) from error


def _entries(record: Mapping[str, Any]) -> list[Any]:
    entries = record.get("models")
    return entries if isinstance(entries, list) else []


def _name(one: object) -> str | None:
    name = one.get("name") if isinstance(one, dict) else None
    return name if isinstance(name, str) else None
