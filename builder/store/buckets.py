"""Folders at a URL of fsspec, such as s3://bucket/repository: a command works on a copy of them.

An object store has no rename. So changes are written in an order in which a server that reads the
bucket only finds complete models. For each model, the files of a new version are written first,
then the other files of the model, then trt-build.json. config.pbtxt, which names the served
version, is last. Files that the published config serves are never overwritten. Files that are no
longer needed are removed at the end.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from builder.errors import EnvironmentProblem, PublishError, UsageError, summary
from builder.store import retired, urls
from builder.store.published import CONFIG, RESULTS, SIDECAR, SIGNATURE
from builder.torchscript import sha256

MARKS = (
    "size",
    "ETag",
    "etag",
    "md5Hash",
    "LastModified",
    "last_modified",
    "updated",
    "mtime",
)
"""Fields of an fsspec file entry that distinguish one content from another."""


@contextlib.contextmanager
def opened(url: str, *, writes: bool = False) -> Iterator[Mirror]:
    """A copy of the folder at `url`, or of the folder of a file, inside the `with` block.

    With `writes`, a missing folder counts as empty, and the block may call `publish`. Raises
    UsageError if the URL is invalid or nothing exists there. Raises EnvironmentProblem if it cannot
    be read or, with `writes`, written.
    """
    with tempfile.TemporaryDirectory(prefix="trt-build-mirror-") as scratch:
        yield Mirror(url, Path(scratch).resolve(), writes=writes)


class Mirror:
    """A copy of the folder at `url`, in `path`, and of `<url>.results` beside it.

    Folders beside the copy are also written beside the URL, except those whose name begins with a
    dot.
    """

    def __init__(self, url: str, scratch: Path, *, writes: bool) -> None:
        self.url, self.writes = url, writes
        self.fs, root = _file_system(url)
        self.root = PurePosixPath(root)
        if len(self.root.parts) < 2:
            raise UsageError(
                f"{url} names no folder",
                fix="name a folder in the bucket, such as s3://bucket/models",
            )
        self.copy = scratch / "copy"
        # files that may be overwritten, to restore them from
        self.first = scratch / "first"
        is_file = False
        with _explained(url, "read"):
            self.fs.invalidate_cache()
            is_file = bool(self.fs.isfile(str(self.root)))
        self.folder = self.root.parent if is_file else self.root
        self.path = self.copy / self.folder.name
        if writes:
            self._try_to_write()
        self.marks = self._marks_now()
        if not self.marks and not writes:
            raise UsageError(
                f"there is nothing at {url}", fix="check the name of the folder"
            )
        self.before = {name: self._fetch(name) for name in self.marks}
        self._keep_first()
        self.path.mkdir(parents=True, exist_ok=True)
        if is_file:
            self.path /= self.root.name

    def publish(self) -> None:
        """Write the changes in the copy back to the URL.

        Raises PublishError if another process has changed the same models, UsageError if a served
        file would be overwritten, and EnvironmentProblem if the bucket cannot be written. If a
        model fails, its written files are reverted.
        """
        now = {name: sha256(self.copy / name) for name in self._in_copy()}
        changed = [name for name in now if now[name] != self.before.get(name)]
        gone = [name for name in self.before if name not in now]
        models = {self._model_of(name) for name in (*changed, *gone)}
        self._refuse_changes_of_others(models)
        self._refuse_overwriting(changed)
        for model in sorted(models, key=self._is_not_step):
            self._write([name for name in changed if self._model_of(name) == model])
        with _explained(self.url, "written"):
            for name in sorted(gone, key=self._removal_rank):
                self.fs.rm_file(self._path(name))
        self.before = now
        self.marks = self._marks_now()

    def _write(self, names: Sequence[str]) -> None:
        """Write the files of one model, or revert all of them."""
        written: list[str] = []
        try:
            with _explained(self.url, "written"):
                for name in sorted(names, key=self._rank):
                    written.append(name)
                    self.fs.put_file(str(self.copy / name), self._path(name))
        except BaseException:
            for name in reversed(written):
                with contextlib.suppress(Exception):
                    self._take_back(name)
            raise

    def _take_back(self, name: str) -> None:
        if name not in self.before:
            self.fs.rm_file(self._path(name))
        else:
            self.fs.put_file(str(self.first / name), self._path(name))

    def _rank(self, name: str) -> tuple[int, str]:
        """The rank of a file: the config last, the record of the model before it."""
        inside = PurePosixPath(name).relative_to(self._model_of(name)).as_posix()
        order = {SIDECAR: 1, SIGNATURE: 2, CONFIG: 3}
        return order.get(inside, 0), name

    def _model_of(self, name: str) -> str:
        """The folder of the model that a file belongs to; "." if it belongs to no model."""
        parents = list(PurePosixPath(name).parents)[:-1]  # without "."
        for parent in reversed(parents):
            for file in (f"{parent}/{CONFIG}", f"{parent}/{SIDECAR}"):
                if (self.copy / file).is_file() or file in self.before:
                    return str(parent)
        return "."

    def _is_not_step(self, model: str) -> tuple[bool, str]:
        """A sort key for models: steps before the ensembles that name them."""
        return retired.step_of(self.copy / model) is None, model

    def _removal_rank(self, name: str) -> tuple[bool, bool]:
        """The rank of a removed file: configs first, those of ensembles before those of steps, so
        that no server reads an ensemble without its steps.
        """
        model = self.first / self._model_of(name)
        return PurePosixPath(name).name != CONFIG, retired.step_of(model) is not None

    def _is_of_version(self, name: str) -> bool:
        return PurePosixPath(name).relative_to(self._model_of(name)).parts[0].isdigit()

    def _keep_first(self) -> None:
        """Copy files that may be overwritten. Version folders are excluded, because
        they are large.
        """
        if not self.writes:
            return
        for name in self.before:
            if not self._is_of_version(name):
                target = self.first / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.copy / name, target)

    def _refuse_overwriting(self, changed: Iterable[str]) -> None:
        """Raise UsageError if a file in a version folder would be overwritten: a server has loaded
        it, or is about to.
        """
        touched = set()
        for name in changed:
            if name in self.before and self._is_of_version(name):
                touched.add(PurePosixPath(self._model_of(name)).name)
        if touched:
            raise UsageError(
                f"{self.url} is in an object store, which cannot replace a version of a model that"
                f" a server may be loading: {', '.join(sorted(touched))}",
                fix="add `versions: {keep: 2}` to the manifest: each publication is a new version",
            )

    def _refuse_changes_of_others(self, models: Iterable[str]) -> None:
        there = self._marks_now()
        chosen = set(models) - {"."}
        differs = {
            name
            for name in {*there, *self.marks}
            if there.get(name) != self.marks.get(name)
            and self._model_of(name) in chosen
        }
        if differs:
            raise PublishError(
                f"another process changed {', '.join(sorted(map(self._model_of, differs)))}"
                f" in {self.url} meanwhile; nothing was written",
                fix="run the command again",
            )

    def _marks_now(self) -> dict[str, str]:
        """A mark of each file's content, by its path relative to the folder's parent."""
        self.fs.invalidate_cache()
        results = self.folder.with_name(f"{self.folder.name}{RESULTS}")
        return {**self._files_in(self.folder), **self._files_in(results)}

    def _files_in(self, folder: PurePosixPath) -> dict[str, str]:
        with _explained(self.url, "read"):
            infos = self.fs.find(str(folder), detail=True)
            return {
                name: repr([str(info.get(mark)) for mark in MARKS])
                for path, info in infos.items()
                if (name := self._name(path, folder)) is not None
            }
        return {}

    def _name(self, path: str, folder: PurePosixPath) -> str | None:
        """The path of a file relative to the parent of `folder`; None if it is outside of it."""
        file = PurePosixPath(path)
        inside = file.is_relative_to(folder) and file != folder
        if not inside or path.endswith("/") or ".." in file.parts:
            return None
        return file.relative_to(folder.parent).as_posix()

    def _fetch(self, name: str) -> str:
        """Download a file and return its SHA-256."""
        target = self.copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with _explained(self.url, "copied"):
            self.fs.get_file(self._path(name), str(target))
        return sha256(target)

    def _in_copy(self) -> list[str]:
        """The files of the copy, and those beside it."""
        names = [
            path.relative_to(self.copy)
            for path in sorted(self.copy.rglob("*"))
            if path.is_file()
        ]
        return [name.as_posix() for name in names if not name.parts[0].startswith(".")]

    def _path(self, name: str) -> str:
        return str(self.folder.parent / name)

    def _try_to_write(self) -> None:
        """Check write access before hours of builds."""
        probe = self._path(f".trt-build-{uuid.uuid4().hex}")
        with _explained(self.url, "written"):
            self.fs.pipe_file(probe, b"trt-build can write here")
            self.fs.rm_file(probe)


def _file_system(url: str) -> tuple[Any, str]:
    if url.startswith(("http://", "https://")):
        raise UsageError(
            f"{url}: trt-build reads and writes no folders over HTTP",
            fix="use a local folder, or a bucket, such as s3://bucket/models",
        )
    try:
        fs, root = urls.opened(url, url, "s3://bucket/a")
    except (UsageError, EnvironmentProblem):
        raise
    except Exception as error:  # each backend raises different errors
        raise _unusable(url, "opened", error) from error
    return fs, root.rstrip("/")


def _unusable(url: str, verb: str, error: Exception) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{url} could not be {verb}: {summary(error)}",
        fix="check that it exists and can be reached from this machine, and its credentials",
    )


@contextlib.contextmanager
def _explained(url: str, verb: str) -> Iterator[None]:
    """Convert the errors of an fsspec backend to an EnvironmentProblem."""
    try:
        yield
    except FileNotFoundError as error:
        if verb == "read":
            return  # the caller reports what is missing
        raise _unusable(url, verb, error) from error
    except Exception as error:
        raise _unusable(url, verb, error) from error
