"""The store: a directory, or any URL that fsspec supports (s3://, gs://, memory://).

    <root>/plans/<2 digits>/<key>/<sha256 of the plan>.plan     written first
    <root>/plans/<2 digits>/<key>/record.json                   written last; makes the entry valid
    <root>/models/<name>.json                                   the last build of that name, for
                                                                `explain`

The record names its plan by hash and is signed with the builder's key (builder.store.signing). So a
truncated, altered or forged file is never used. Two builders of one key write two plans, because
TensorRT's plans are not reproducible. The later record is used; both plans are valid.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import posixpath
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.engine import Plan
from builder.errors import EnvironmentProblem, UsageError
from builder.store import signing, urls
from builder.store.canonical import normalized, text

FORMAT = 2
MOVING = ("file", "local", "sftp", "ssh", "smb", "hdfs", "webhdfs")
"""Protocols whose files are visible while they are written. There a file is written under another
name and then moved. With the others (object stores) an upload is visible only when it is complete.
"""


def last(url: str, name: str) -> dict[str, Any] | None:
    """The last record of a model of this name in the store at `url`; None if it is not
    available.
    """
    store = Store(url)
    # backends of fsspec raise different errors, and this is only used in messages
    with contextlib.suppress(Exception):
        return store.last(name)
    return None


@dataclass(frozen=True)
class Entry:
    """A stored plan, and the recorded parts of its key."""

    plan: Plan
    parts: Mapping[str, Any]


class _Unreachable:
    """A file system that could not be opened. Each use raises the error of opening it, so a failing
    store causes the same warnings.
    """

    protocol = ()

    def __init__(self, failure: Exception) -> None:
        self.failure = failure

    def __getattr__(self, name: str) -> Any:
        raise self.failure


class Store:
    """Plans by key. `warnings` lists unusable entries.

    Raises UsageError if the URL is invalid, and EnvironmentProblem if the package of its protocol
    is missing.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.warnings: list[str] = []
        try:
            self.fs, self.root = urls.opened(url, f"--store {url}", "s3://bucket/plans")
        except (UsageError, EnvironmentProblem):
            raise
        except Exception as error:  # each backend raises different errors
            self.fs = _Unreachable(error)
            self.root = url
        if isinstance(self.fs.protocol, tuple | list):
            protocols = self.fs.protocol
        else:
            protocols = (self.fs.protocol,)
        self._moves = any(protocol in MOVING for protocol in protocols)

    def get(self, key: str) -> Entry | None:
        """The entry of this key; None if there is none, or it is damaged."""
        path = self.entry_path("plans", key[:2], key, "record.json")
        record = self.read_record(path)
        if record is None:
            return None
        shapes = {"key": str, "sha256": str, "parts": dict, "facts": dict}
        is_shaped = all(
            isinstance(record.get(name), shape) for name, shape in shapes.items()
        )
        if record.get("key") != key or not is_shaped:
            self._refused(path, "is not the record of this key")
            return None
        data = self.read(
            self.entry_path("plans", key[:2], key, f"{record['sha256']}.plan")
        )
        if data is None or hashlib.sha256(data).hexdigest() != record["sha256"]:
            self._refused(path, "names a plan that is missing or damaged")
            return None
        return Entry(Plan(data, record["facts"]), record["parts"])

    def put(self, key: str, parts: Mapping[str, Any], plan: Plan) -> None:
        """Store a plan under its key: the data, then the record."""
        sha256 = hashlib.sha256(plan.data).hexdigest()
        self.write(self.entry_path("plans", key[:2], key, f"{sha256}.plan"), plan.data)
        record = {"key": key, "sha256": sha256, "parts": parts, "facts": plan.facts}
        self.write_record(self.entry_path("plans", key[:2], key, "record.json"), record)

    def last(self, name: str) -> dict[str, Any] | None:
        """The last record that any builder stored with `remember` for a model of this name; None
        without one.
        """
        return self.read_record(self.entry_path("models", f"{name}.json"))

    def remember(self, name: str, record: Mapping[str, Any]) -> None:
        """Store the record of the last build under this name."""
        self.write_record(self.entry_path("models", f"{name}.json"), record)

    def base(self, structure: str) -> dict[str, Any] | None:
        """The plan that `remember_base` stored last for this structure: its `key`, and the digests
        of its `weights`.
        """
        path = self.entry_path("structures", f"{structure}.json")
        record = self.read_record(path)
        if record is not None and not (
            isinstance(record.get("key"), str)
            and isinstance(record.get("weights"), dict)
        ):
            self._refused(path, "is not the record of a structure")
            return None
        return record

    def remember_base(self, structure: str, base: Mapping[str, Any]) -> None:
        """Record which plan has this structure and can be refitted."""
        self.write_record(self.entry_path("structures", f"{structure}.json"), base)

    def entry_path(self, *parts: str) -> str:
        """The path of an entry on the store's file system."""
        return posixpath.join(self.root, *parts)

    def size(self, path: str) -> int | None:
        """The size of a file in the store in bytes; None if there is none."""
        try:
            info = self.fs.info(path)
        except FileNotFoundError:
            return None
        if info["type"] == "file":
            return int(info["size"])
        return None

    def upload(self, source: Path, path: str) -> None:
        """Copy the file `source` into the store. It is visible only when complete."""
        self._placed(path, lambda staged: self.fs.put_file(str(source), staged))

    def download(self, path: str, target: Path) -> None:
        """Copy a file of the store to `target`. Raises FileNotFoundError."""
        self.fs.get_file(path, str(target))

    def remove(self, path: str) -> None:
        """Remove a file of the store, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm_file(path)

    def names(self, folder: str) -> list[str]:
        """The names of the files in a folder of the store, in order."""
        self.fs.invalidate_cache()
        try:
            paths = self.fs.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        return sorted(posixpath.basename(str(path).rstrip("/")) for path in paths)

    def read(self, path: str) -> bytes | None:
        """The bytes of a file; None if there is none."""
        try:
            return bytes(self.fs.cat_file(path))
        except FileNotFoundError:
            return None
        except IsADirectoryError:
            self._refused(path, "is a folder")
            return None

    def write(self, path: str, data: bytes) -> None:
        """Write a file. It is visible only when complete."""
        self._placed(path, lambda staged: self.fs.pipe_file(staged, data))

    def read_record(self, path: str) -> dict[str, Any] | None:
        """The JSON object in a file; None if there is none that this builder's key signed."""
        data = self.read(path)
        if data is None:
            return None
        try:
            read = json.loads(data)
        except (ValueError, RecursionError):
            self._refused(path, "is not JSON")
            return None
        if not isinstance(read, dict):
            self._refused(path, "is not a record")
            return None
        if read.pop("format", None) != FORMAT:
            return None  # of another version of trt-build
        signature = read.pop("signature", None)
        if not signing.is_signed(text(read), signature):
            self._refused(
                path,
                "is not signed with this builder's key; builders that share a store set"
                f" {signing.KEY_VARIABLE} to one key",
            )
            return None
        return read

    def write_record(self, path: str, record: Mapping[str, Any]) -> None:
        """Write a JSON object with its signature."""
        content = normalized(record)
        signature = signing.sign(text(content))
        signed = {**content, "format": FORMAT, "signature": signature}
        self.write(path, text(signed).encode())

    def _placed(self, path: str, write: Callable[[str], object]) -> None:
        """Let `write` write the file: first under another name, if a partial file would
        be visible.
        """
        if not self._moves:  # an object store has no folders
            write(path)
            return
        self.fs.makedirs(posixpath.dirname(path), exist_ok=True)
        if self.fs.isdir(path):
            # else the file would be moved into the folder
            self.fs.rm(path, recursive=True)
        staged = f"{path}.{uuid.uuid4().hex}.tmp"
        try:
            write(staged)
            self.fs.mv(staged, path)
        except BaseException:
            if self.fs.exists(staged):
                self.fs.rm_file(staged)
            raise

    def _refused(self, path: str, why: str) -> None:
        self.warnings.append(f"{path} in the store {why}: it is not used")
