"""Files and folders in the store by content: the input of a farm's builds, and what they published.

    <root>/files/<2 digits>/<sha256>            a file, by its content
    <root>/published/<2 digits>/<key>.json      the folders of one published model, written last
    <root>/goldens/<2 digits>/<key>.json        the goldens of one model, written last

A record names each file by its hash and is signed with the builder's key, as the record of a plan
is. So a file that is missing, truncated or replaced is never taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from builder.errors import EnvironmentProblem
from builder.store.storage import Store
from builder.torchscript import sha256

Files = Mapping[str, str]
"""The SHA-256 of each file, by its path below a folder, with `/` between the parts."""


@dataclass(frozen=True)
class Publication:
    """A published model in the store: `folders` has the files of the model and of an ensemble's
    steps by folder name, `result` what the build reported, JSON-able.
    """

    name: str
    folders: Mapping[str, Files]
    result: Mapping[str, Any]


@dataclass(frozen=True)
class FileSet:
    """Files in the store that belong together, by name, and JSON-able facts about them."""

    files: Files
    facts: Mapping[str, Any]


class Folders:
    """Files and published models in the store at `url`.

    Raises UsageError for a URL that is none, and EnvironmentProblem if the store cannot be used:
    unlike a plan, these entries cannot be built again by the reader.
    """

    def __init__(self, url: str) -> None:
        self.store = Store(url)

    def add(self, path: Path) -> str:
        """Keep the file `path`, unless it is there already; its SHA-256."""
        digest = sha256(path)
        target = self._file(digest)
        with _explained(self.store.url, "written"):
            if self.store.size(target) != path.stat().st_size:
                self.store.upload(path, target)
        return digest

    def fetch(self, digest: str, path: Path) -> None:
        """Write the file with this SHA-256 to `path`. Raises EnvironmentProblem if the store
        does not have it whole.
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

    def keep(self, key: str, repository: Path, name: str, result: Mapping[str, Any]) -> Publication:
        """Keep the model `name` that was published in `repository`, where nothing else is, and the
        record of it last.
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
        """What was published under the key; None if there is no record of it that this builder's
        key signed, or one of its files is missing.
        """
        with _explained(self.store.url, "read"):
            said = self.store.read_record(self._record(key))
            if said is None or said.get("key") != key:
                return None
            found = Publication(said["name"], said["folders"], said["result"])
            names = [
                f"{folder}/{name}" for folder, files in found.folders.items() for name in files
            ]
            if not all(_stays_inside(name) for name in (found.name, *names)):
                return None
            digests = {digest for files in found.folders.values() for digest in files.values()}
            whole = all(self.store.size(self._file(digest)) is not None for digest in digests)
        return found if whole else None

    def keep_files(
        self, kind: str, key: str, files: Mapping[str, Path], facts: Mapping[str, Any]
    ) -> None:
        """Keep files that belong together, and their record last. `kind` is a folder of the store
        with one record for each key.
        """
        digests = {name: self.add(path) for name, path in files.items()}
        record = {"key": key, "kind": kind, "files": digests, "facts": dict(facts)}
        with _explained(self.store.url, "written"):
            self.store.write_record(self._record(key, kind), record)

    def find_files(self, kind: str, key: str) -> FileSet | None:
        """What `keep_files` was last given; None if there is no record that this builder's key
        signed. A file of it may be missing or damaged: `fetch` raises for those.
        """
        with _explained(self.store.url, "read"):
            said = self.store.read_record(self._record(key, kind))
        if said is None or (said.get("key"), said.get("kind")) != (key, kind):
            return None
        found = FileSet(said["files"], said["facts"])
        return found if all(_stays_inside(name) for name in found.files) else None

    def restore(self, found: Publication, repository: Path) -> Path:
        """Write the folders of the published model into `repository`; the model's folder."""
        for folder, files in found.folders.items():
            for name, digest in files.items():
                self.fetch(digest, repository / folder / name)
        return repository / found.name

    def _file(self, digest: str) -> str:
        return self.store.place("files", digest[:2], digest)

    def _record(self, key: str, kind: str = "published") -> str:
        return self.store.place(kind, key[:2], f"{key}.json")


def _stays_inside(name: str) -> bool:
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts


class _explained:
    """Turns what a backend of fsspec raises into an EnvironmentProblem."""

    def __init__(self, url: str, done: str) -> None:
        self.url, self.done = url, done

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, EnvironmentProblem):
            return
        raise EnvironmentProblem(
            f"the store {self.url} could not be {self.done}: {error}",
            fix="check that the store can be reached from this machine, and its credentials",
        ) from error
