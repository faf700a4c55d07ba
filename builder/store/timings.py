"""Timing caches in the store: the measurements of machines with one kind of GPU and TensorRT.

    <root>/timing/<kind>/<sha256>.cache     written first
    <root>/timing/<kind>/<sha256>.json      its record, signed, written last

Each build adds its own entry, so that two concurrent writers lose nothing. A reader combines all
entries. An entry is removed only after an entry that contains it was written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from builder import files
from builder.engine import caches, timing
from builder.store.canonical import digest
from builder.store.storage import Store

FOLDER = "timing"
Combine = Callable[[Sequence[bytes]], tuple[bytes, list[bool]]]
"""Combines several timing caches into one, and reports which of them were used
(builder.engine.timing.combined).
"""


def kind(machine: Mapping[str, object]) -> str:
    """The kind of machines that can share measurements: one GPU, driver, flavor and version of
    TensorRT (builder.store.request.machine).
    """
    return digest(machine)[:32]


class Timings:
    """The timing caches of one kind of machine in a store. `warnings` lists unusable entries.

    Raises the errors of the store's file system.
    """

    def __init__(self, store: Store, kind: str, combine: Combine) -> None:
        self.store = store
        self.kind = kind
        self.combine = combine
        self.warnings: list[str] = []

    def fetch(self, path: Path) -> dict[str, bytes]:
        """Combine all entries into the machine's timing cache at `path`. Returns the entries that
        TensorRT accepted, by SHA-256.
        """
        entries = self._entries()
        if not entries:
            return {}
        caches.with_folder(path)
        with timing.locked(path):
            local = [path.read_bytes()] if path.is_file() else []
            data, accepted = self.combine([*local, *entries.values()])
            used = dict(zip(entries, accepted[len(local) :], strict=True))
            if any(used.values()):
                files.write(path, data, keep_mode=True)
        for name in (name for name, was_used in used.items() if not was_used):
            self.warnings.append(
                f"the timing cache {name[:12]} in the store is not of this kind"
            )
        return {name: entries[name] for name, was_used in used.items() if was_used}

    def keep(self, path: Path, fetched: Mapping[str, bytes]) -> None:
        """Store the machine's timing cache, with the new measurements of a build, and remove the
        `fetched` entries, which it includes.
        """
        if not path.is_file():
            return
        with timing.locked(path):
            local = path.read_bytes()
        # once more, because the machine's cache may have been removed meanwhile
        data, used = self.combine([local, *fetched.values()])
        name = hashlib.sha256(data).hexdigest()
        if not used[0] or name in fetched:
            return
        self.store.write(self._path(name, "cache"), data)
        self.store.write_record(
            self._path(name, "json"), {"kind": self.kind, "sha256": name}
        )
        for entry, was_used in zip(fetched, used[1:], strict=True):
            if was_used:
                self.store.remove(self._path(entry, "json"))
                self.store.remove(self._path(entry, "cache"))

    def _entries(self) -> dict[str, bytes]:
        """The complete entries that this builder's key signed, by SHA-256."""
        entries = {}
        for file in self.store.names(self.store.entry_path(FOLDER, self.kind)):
            name, _, suffix = file.partition(".")
            if suffix != "json":
                continue
            record = self.store.read_record(self._path(name, "json"))
            data = None
            if record:
                data = self.store.read(self._path(name, "cache"))
            if record is None or data is None:
                continue  # removed meanwhile, or not signed
            whole = hashlib.sha256(data).hexdigest()
            is_of_kind = record.get("kind") == self.kind
            if is_of_kind and record.get("sha256") == whole == name:
                entries[name] = data
            else:
                self.warnings.append(
                    f"the timing cache {name[:12]} in the store is damaged"
                )
        return entries

    def _path(self, name: str, suffix: str) -> str:
        return self.store.entry_path(FOLDER, self.kind, f"{name}.{suffix}")
