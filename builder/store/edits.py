"""Manual changes of a published model: edits of its config, and additional files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.errors import UsageError
from builder.store import published
from builder.store.differences import changes
from builder.store.hashes import Hashes

REPORT, KEEP, OVERWRITE = "report", "keep", "overwrite"
"""Policies for manual edits. REPORT: the model is not rebuilt while it has edits. KEEP: they are
carried over to the new config. OVERWRITE: they are dropped.
"""
GENERATED = "config"
"""The trt-build.json key for the text of the generated config."""
COMPILED = "__pycache__"
SHOWN = 6
"""Maximum number of fields of a difference that are shown."""


@dataclass(frozen=True)
class Edit:
    """A config that differs from the generated one. `before` is None if the generated text is not
    known.
    """

    file: Path
    before: str | None

    def __str__(self) -> str:
        """The edit as text: `net/config.pbtxt was edited by hand:
        instance_group.0.count 1 -> 2`.
        """
        name = f"{self.file.parent.name}/{self.file.name}"
        if self.before is None:
            return f"{name} was edited by hand"
        after = self.file.read_text(encoding="utf-8", errors="replace")
        fields = _fields(after)
        if fields is None:
            return f"{name} was edited by hand, and is not a Triton config any more"
        changed = changes(_fields(self.before) or {}, fields) or [
            "only its layout or comments"
        ]
        more = (
            f" and {len(changed) - SHOWN} more fields" if len(changed) > SHOWN else ""
        )
        return f"{name} was edited by hand: {', '.join(changed[:SHOWN])}{more}"


def _fields(text: str) -> dict[str, Any] | None:
    """The fields of a config.pbtxt as plain data; None if the text is not a config."""
    from google.protobuf import json_format, text_format
    from tritonclient.grpc import model_config_pb2 as pb

    try:
        message = text_format.Parse(text, pb.ModelConfig())
    except text_format.ParseError:
        return None
    fields: dict[str, Any] = json_format.MessageToDict(
        message, preserving_proto_field_name=True
    )
    return fields


def edits(folder: Path, hashes: Hashes) -> list[Edit]:
    """The edited configs of a published model and of its steps."""
    record = published.sidecar(folder) or {}
    steps = [
        folder.parent / Path(step).name for step in published.recorded_steps(record)
    ]
    return [
        edit
        for model in (folder, *steps)
        for edit in _edit(model, published.sidecar(model) or {}, hashes)
    ]


def _edit(folder: Path, record: Mapping[str, Any], hashes: Hashes) -> Iterator[Edit]:
    file = folder / published.CONFIG
    expected = record.get("files", {}).get(published.CONFIG)
    if expected and file.is_file() and hashes.sha256(file) != expected:
        before = record.get(GENERATED)
        yield Edit(file, before if isinstance(before, str) else None)


def foreign(folder: Path) -> list[str]:
    """The versions and files in a published model's folder that trt-build did not write, such as
    `2/` and `1/notes.txt`.
    """
    record = published.sidecar(folder)
    if record is None:
        return []
    written = {published.SIDECAR, published.SIGNATURE, *record.get("files", {})}
    for version in published.versions(folder)[1:]:
        paths = (*version.files.values(), version.record / published.SIDECAR)
        written |= {path.relative_to(folder).as_posix() for path in paths}
    parents = {str(parent) for name in written for parent in Path(name).parents}
    unknown: list[Path] = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if COMPILED in name.parts:
            continue
        if any(name.is_relative_to(listed) for listed in unknown):
            continue
        if path.is_dir() and not path.is_symlink():
            if str(name) not in parents and _is_version(folder, path):
                unknown.append(name)
        elif name.as_posix() not in written:
            unknown.append(name)
    return [
        f"{name}/" if (folder / name).is_dir() else name.as_posix() for name in unknown
    ]


def _is_version(folder: Path, path: Path) -> bool:
    return path.parent == folder and path.name.isdigit()


def notes(folder: Path, hashes: Hashes) -> list[str]:
    """The report on a manually edited model."""
    reported = [
        f"{edit}; it is kept. `trt-build adopt` writes it into the manifest, --overwrite-edits"
        " discards it"
        for edit in edits(folder, hashes)
    ]
    for name in foreign(folder):
        served = ", and Triton may serve it" if name.endswith("/") else ""
        reported.append(f"{folder.name}/{name} is not of trt-build{served}: remove it")
    return reported


def _is_foreign(folder: Path) -> bool:
    """Whether the path has content without a trt-build.json, even a damaged one."""
    if not os.path.isdir(folder):
        return os.path.lexists(folder)
    return any(folder.iterdir()) and not os.path.lexists(folder / published.SIDECAR)


def refuse_foreign(folder: Path) -> None:
    """Raise UsageError if trt-build did not write the folder or file at this path."""
    if _is_foreign(folder):
        raise UsageError(
            f"publishing would replace {folder}, which trt-build did not write",
            where=str(folder),
            fix="move it away, or use another repository; `repo --overwrite-edits` discards it",
        )


def refuse(folder: Path, hashes: Hashes, policy: str) -> None:
    """Raise UsageError if a new publication would lose changes of the user.

    These are: content that trt-build did not write; edits of the config, unless `policy` allows it;
    edits of steps, which KEEP cannot carry over; and other versions.
    """
    if policy == OVERWRITE:
        return
    refuse_foreign(folder)
    all_edits = edits(folder, hashes)
    lost = all_edits
    if policy != REPORT:
        lost = [edit for edit in all_edits if edit.file.parent != folder]
    versions = [name for name in foreign(folder) if name.endswith("/")]
    if not lost and not versions:
        return
    reported = [
        *map(str, lost),
        *(
            f"{folder.name}/{name} is a version that trt-build did not write"
            for name in versions
        ),
    ]
    keeps = "--keep-edits keeps an edited config, " if policy == REPORT and lost else ""
    raise UsageError(
        f"publishing would overwrite changes made by hand: {'; '.join(reported)}",
        where=str(folder),
        fix=f"{keeps}`trt-build adopt` writes it into the manifest, --overwrite-edits discards it",
    )
