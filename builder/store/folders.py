"""Files and folders in the store by content: the inputs of a farm's builds, and published models.

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
class Publication:
    """A published model in the store.

    `folders` has the files of the model and of an ensemble's steps, by folder name. `result` is the
    build's result as JSON data.
    """

    name: str
    folders: Mapping[str, Files]
    result: Mapping[str, Any]


@dataclass(frozen=True)
class FileSet:
    """Files in the store that belong together, by name, with facts about them as JSON data."""

    files: Files
    facts: Mapping[str, Any]


class Folders:
    """Files and published models in the store at `url`.

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
        self, key: str, repository: Path, name: str, result: Mapping[str, Any]
    ) -> Publication:
        """Store the model `name` that was published in `repository`, the only model there. Its
        record is written last.
        """
        folders = {
            folder.name: {
                path.relative_to(folder).as_posix(): self.add(path)
                for path in sorted(folder.rglob("*"))
                if path.is_file()
            }
            for folder in sorted(repository.iterdir())
            if folder.is_dir()
        }
        record = {"key": key, "name": name, "folders": folders, "result": dict(result)}
        with _explained(self.store.url, "written"):
            self.store.write_record(self._record(key), record)
        return Publication(name, folders, result)

    def find(self, key: str) -> Publication | None:
        """The published model of the key.

        None if it has no record that this builder's key signed, or if one of its files is missing.
        """
        with _explained(self.store.url, "read"):
            record = self.store.read_record(self._record(key))
            if record is None or record.get("key") != key:
                return None
            publication = Publication(
                record["name"], record["folders"], record["result"]
            )
            names = [
                f"{folder}/{name}"
                for folder, files in publication.folders.items()
                for name in files
            ]
            if not all(_stays_inside(name) for name in (publication.name, *names)):
                return None
            digests = {
                digest
                for files in publication.folders.values()
                for digest in files.values()
            }
            whole = all(
                self.store.size(self._file(digest)) is not None for digest in digests
            )
        return publication if whole else None

    def keep_files(
        self, kind: str, key: str, files: Mapping[str, Path], facts: Mapping[str, Any]
    ) -> None:
        """Store files that belong together, then their record. `kind` is a folder of the store with
        one record for each key.
        """
        digests = {name: self.add(path) for name, path in files.items()}
        record = {"key": key, "kind": kind, "files": digests, "facts": dict(facts)}
        with _explained(self.store.url, "written"):
            self.store.write_record(self._record(key, kind), record)

    def find_files(self, kind: str, key: str) -> FileSet | None:
        """The files that `keep_files` stored last.

        None if there is no record that this builder's key signed. Files may be missing or damaged:
        `fetch` raises an error for those.
        """
        with _explained(self.store.url, "read"):
            record = self.store.read_record(self._record(key, kind))
        if record is None:
            return None
        if (record.get("key"), record.get("kind")) != (key, kind):
            return None
        file_set = FileSet(record["files"], record["facts"])
        if all(_stays_inside(name) for name in file_set.files):
            return file_set
        return None

    def restore(self, publication: Publication, repository: Path) -> Path:
        """Write the folders of the published model into `repository`. Returns the
        model's folder.
        """
        for folder, files in publication.folders.items():
            for name, digest in files.items():
                self.fetch(digest, repository / folder / name)
        return repository / publication.name

    def _file(self, digest: str) -> str:
        return self.store.entry_path("files", digest[:2], digest)

    def _record(self, key: str, kind: str = "published") -> str:
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
