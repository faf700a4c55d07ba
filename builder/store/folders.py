"""Files in the store by content: the inputs of a farm's builds, published models, and goldens.

    <root>/files/<2 digits>/<sha256>            a file, by its content
    <root>/published/<2 digits>/<key>.json      the folders of one published model, written last
    <root>/goldens/<2 digits>/<key>.json        the goldens of one model, written last

A record names each file by its hash and is signed with the builder's key, like the record of a
plan. So a missing, truncated or replaced file is never used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from builder.errors import EnvironmentProblem, summary
from builder.store.storage import Store
from builder.torchscript import sha256

Files = Mapping[str, str]
"""The SHA-256 of each file by its path below a folder. Path separators are `/`."""


@dataclass(frozen=True)
class FileSet:
    """Files in the store that belong together, by their path below a folder, with facts about them
    as JSON data.
    """

    files: Files
    facts: Mapping[str, Any]


class Folders:
    """Files and sets of files in the store at `url`.

    Raises UsageError if the URL is invalid, and EnvironmentProblem if the store cannot be used.
    Unlike a plan, these entries cannot be rebuilt by the reader.
    """

    def __init__(self, url: str) -> None:
        self.store = Store(url)

    def add(self, path: Path) -> str:
        """Store the file `path` unless it is already stored. Returns its SHA-256."""
        digest = sha256(path)
        target = self._file(digest)
        with _explained(self.store.url, "written"):
            if self.store.size(target) != path.stat().st_size:
                self.store.upload(path, target)
        return digest

    def fetch(self, digest: str, path: Path) -> None:
        """Write the file with this SHA-256 to `path`. Raises EnvironmentProblem if the store does
        not have the complete file.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        source = self._file(digest)
        with _explained(self.store.url, "read"):
            self.store.download(source, path)
        if sha256(path) != digest:
            self.store.remove(source)  # so that the next `add` writes it again
            path.unlink()
            raise EnvironmentProblem(
                f"the file {digest} in the store {self.store.url} is damaged",
                fix="run the command again: it is then written again",
            )

    def keep(
        self, kind: str, key: str, files: Mapping[str, Path], facts: Mapping[str, Any]
    ) -> None:
        """Store files that belong together, then their record. `kind` is a folder of the store with
        one record for each key.
        """
        digests = {name: self.add(path) for name, path in files.items()}
        record = {"key": key, "kind": kind, "files": digests, "facts": dict(facts)}
        with _explained(self.store.url, "written"):
            self.store.write_record(self._record(key, kind), record)

    def find(self, kind: str, key: str, *, whole: bool = False) -> FileSet | None:
        """The files that `keep` stored last.

        None if there is no record that this builder's key signed, and with `whole` if a file is
        missing. Files may be damaged: `fetch` raises an error for those.
        """
        with _explained(self.store.url, "read"):
            record = self.store.read_record(self._record(key, kind))
            if record is None or (record.get("key"), record.get("kind")) != (key, kind):
                return None
            file_set = FileSet(record["files"], record["facts"])
            if not all(map(_stays_inside, file_set.files)):
                return None
            digests = set(file_set.files.values()) if whole else ()
            if any(self.store.size(self._file(digest)) is None for digest in digests):
                return None
        return file_set

    def restore(self, file_set: FileSet, folder: Path) -> None:
        """Write the files into `folder`. Raises the errors of `fetch`."""
        for name, digest in file_set.files.items():
            self.fetch(digest, folder / name)

    def _file(self, digest: str) -> str:
        return self.store.entry_path("files", digest[:2], digest)

    def _record(self, key: str, kind: str) -> str:
        return self.store.entry_path(kind, key[:2], f"{key}.json")


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


@contextmanager
def _explained(url: str, verb: str) -> Iterator[None]:
    """Convert the errors of an fsspec backend to an EnvironmentProblem."""
    try:
        yield
    except EnvironmentProblem:
        raise
    except Exception as error:  # each backend raises different errors
        raise EnvironmentProblem(
            f"the store {url} could not be {verb}: {summary(error)}",
            fix="check that the store can be reached from this machine, and its credentials",
        ) from error
