"""Timing caches in the store: what machines with one kind of GPU and TensorRT have measured.

    <root>/timing/<kind>/<sha256>.cache     written first
    <root>/timing/<kind>/<sha256>.json      its record, signed, written last

Each build adds an entry of its own, so that two that write at once lose nothing. A reader combines
all entries. An entry is removed only after one that contains it was written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from builder.engine import caches, timing
from builder.store.canonical import digest
from builder.store.storage import Store

FOLDER = "timing"
Combine = Callable[[Sequence[bytes]], tuple[bytes, list[bool]]]
"""One timing cache of several, and which of them were taken (builder.engine.timing.combined)."""


def kind(machine: Mapping[str, object]) -> str:
    """The name of the machines that may use one another's measurements: of one GPU, driver,
    flavor and version of TensorRT (builder.store.request.machine).
    """
    return digest(machine)[:32]


class Timings:
    """The timing caches of one kind of machine in a store. `warnings` says what was not taken.

    Raises what the store's file system raises.
    """

    def __init__(self, store: Store, kind: str, combine: Combine) -> None:
        self.store, self.kind, self.combine = store, kind, combine
        self.warnings: list[str] = []

    def fetch(self, path: Path) -> dict[str, bytes]:
        """Combine all entries into the machine's timing cache at `path`; those that TensorRT took,
        by SHA-256.
        """
        found = self._entries()
        if not found:
            return {}
        caches.beside(path)
        with timing.locked(path):
            own = [path.read_bytes()] if path.is_file() else []
            data, taken = self.combine([*own, *found.values()])
            used = dict(zip(found, taken[len(own) :], strict=True))
            if any(used.values()):
                timing.replace(path, data)
        for name in (name for name, was_taken in used.items() if not was_taken):
            self.warnings.append(f"the timing cache {name[:12]} in the store is not of this kind")
        return {name: found[name] for name, was_taken in used.items() if was_taken}

    def keep(self, path: Path, fetched: Mapping[str, bytes]) -> None:
        """Keep the machine's timing cache, which has what a build has measured, in place of the
        entries that were `fetched` before it.
        """
        if not path.is_file():
            return
        with timing.locked(path):
            own = path.read_bytes()
        # once more: somebody may have removed the machine's cache meanwhile
        data, taken = self.combine([own, *fetched.values()])
        name = hashlib.sha256(data).hexdigest()
        if not taken[0] or name in fetched:
            return
        self.store.write(self._place(name, "cache"), data)
        self.store.write_record(self._place(name, "json"), {"kind": self.kind, "sha256": name})
        for other, was_taken in zip(fetched, taken[1:], strict=True):
            if was_taken:
                self.store.remove(self._place(other, "json"))
                self.store.remove(self._place(other, "cache"))

    def _entries(self) -> dict[str, bytes]:
        """The whole entries that this builder's key signed, by SHA-256."""
        found = {}
        for file in self.store.names(self.store.place(FOLDER, self.kind)):
            name, _, suffix = file.partition(".")
            if suffix != "json":
                continue
            said = self.store.read_record(self._place(name, "json"))
            data = self.store.read(self._place(name, "cache")) if said else None
            if said is None or data is None:
                continue  # removed meanwhile, or not signed
            whole = hashlib.sha256(data).hexdigest()
            if (said.get("kind"), said.get("sha256"), whole) == (self.kind, name, name):
                found[name] = data
            else:
                self.warnings.append(f"the timing cache {name[:12]} in the store is damaged")
        return found

    def _place(self, name: str, suffix: str) -> str:
        return self.store.place(FOLDER, self.kind, f"{name}.{suffix}")
