"""Manual changes of a published model: edits of its config, and additional files."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
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
MOVE_FOREIGN = "move it away, or use another repository"
MOVE_CHANGES = (
    "undo edits and move other files away, or move the model's folders out of the"
    " repository"
)
SHOWN = 6
"""Maximum number of fields of a difference, and of files, that are shown."""


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
    return [
        edit
        for model in _folders(folder)
        for edit in _edit(model, published.sidecar(model) or {}, hashes)
    ]


def _folders(folder: Path) -> list[Path]:
    """The folder of a published model, and those of the steps of all its versions."""
    steps = sorted(published.step_names(folder))
    return [folder, *(folder.parent / step for step in steps)]


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
    written |= {path.name for path in folder.glob(published.UNFINISHED)}
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
            if (
                str(name) not in parents
                and path.parent == folder
                and path.name.isdigit()
            ):
                unknown.append(name)
        elif name.as_posix() not in written:
            unknown.append(name)
    return [
        f"{name}/" if (folder / name).is_dir() else name.as_posix() for name in unknown
    ]


def additions(folder: Path) -> list[str]:
    """What `foreign` returns for a published model and its steps, with the name of the folder, such
    as `net/2/` and `net.0.torch.1a2b/notes.txt`.
    """
    return [
        f"{model.name}/{name}" for model in _folders(folder) for name in foreign(model)
    ]


def notes(folder: Path, hashes: Hashes) -> list[str]:
    """The report on a manually edited model."""
    reported = [
        f"{edit}; it is kept. `trt-build adopt` writes it into the manifest, --overwrite-edits"
        " discards it"
        for edit in edits(folder, hashes)
    ]
    for name in additions(folder):
        served = ", and Triton may serve it" if name.endswith("/") else ""
        reported.append(f"{name} was not written by trt-build{served}: move it away")
    return reported


def _is_foreign(folder: Path) -> bool:
    """Whether the path is a link, or has content without a trt-build.json, even a damaged one."""
    if os.path.islink(folder) or not os.path.isdir(folder):
        return os.path.lexists(folder)
    return any(folder.iterdir()) and not os.path.lexists(folder / published.SIDECAR)


def refuse(folder: Path, hashes: Hashes, policy: str) -> None:
    """Raise UsageError if `trt-build repo` would lose changes of the user.

    These are: content that trt-build did not write; edits of the config, unless `policy` allows it;
    and edits of steps, which KEEP cannot carry over.
    """
    refuse_case(folder)
    if policy == OVERWRITE:
        return
    discard = "`repo --overwrite-edits` discards it"
    _refuse_foreign(folder, f"{MOVE_FOREIGN}; {discard}")
    lost = edits(folder, hashes)
    if policy != REPORT:
        lost = [edit for edit in lost if edit.file.parent != folder]
    added = additions(folder)
    fixes = ["--keep-edits keeps an edited config"] if lost and policy == REPORT else []
    if lost:
        fixes.append("`trt-build adopt` writes it into the manifest")
    if added:
        fixes.append("move files that you need out of the repository")
    _refuse_loss(folder, lost, added, ", ".join([*fixes, discard]))


def refuse_any(folder: Path, hashes: Hashes) -> None:
    """Raise UsageError if a publication other than that of `trt-build repo` would lose changes of
    the user: edits, and content that trt-build did not write.
    """
    refuse_case(folder)
    _refuse_foreign(folder, MOVE_FOREIGN)
    lost = edits(folder, hashes)
    _refuse_loss(folder, lost, additions(folder), MOVE_CHANGES)


def refuse_case(folder: Path) -> None:
    """Raise UsageError if another model of the repository differs from this one only in the case of
    its name. Where file names have no case, both have one folder.
    """
    if not folder.parent.is_dir():
        return
    for other in folder.parent.iterdir():
        if (
            other.name != folder.name
            and other.name.casefold() == folder.name.casefold()
        ):
            raise UsageError(
                f"the repository has a model {other.name!r}, whose name differs from"
                f" {folder.name!r} only in case: some file systems have one folder for both",
                where=str(other),
                fix="rename one of them, or remove the published one: `trt-build remove"
                f" {shlex.join((str(folder.parent), other.name))}`",
            )


def _refuse_foreign(folder: Path, fix: str) -> None:
    """Raise UsageError if trt-build did not write the folder or file at this path."""
    if _is_foreign(folder):
        raise UsageError(
            f"publishing would replace {folder}, which trt-build did not write",
            where=str(folder),
            fix=fix,
        )


def _refuse_loss(
    folder: Path, lost: Sequence[Edit], added: Sequence[str], fix: str
) -> None:
    """Raise UsageError if there are edits or additions."""
    if not lost and not added:
        return
    reported = [
        *map(str, lost),
        *(
            f"{name} is a {'version' if name.endswith('/') else 'file'} that trt-build did not"
            " write"
            for name in added[:SHOWN]
        ),
    ]
    if len(added) > SHOWN:
        reported.append(
            f"{len(added) - SHOWN} more files were not written by trt-build"
        )
    raise UsageError(
        f"publishing would overwrite changes made by hand: {'; '.join(reported)}",
        where=str(folder),
        fix=fix,
    )
