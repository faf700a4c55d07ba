"""Parameters that name a local folder or a URL, such as s3://bucket/models.

For a URL the command gets the path of a local copy. Its changes are written back just before the
result is shown, and messages name the URL.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click

from builder import store
from builder.cli.terminal import Terminal
from builder.errors import EnvironmentProblem, UsageError

LOCAL_ONLY = {
    "write_env": "--write-env (the file is written beside a local repository)",
    "search_precision": "--search-precision (it writes into manifests)",
}
"""Options that require local folders, by parameter."""


class Url(str):
    """A folder that is not local."""


class NamedPath(click.Path):
    """A path that is not empty. `--out "$UNSET"` would mean the working directory."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """The value as click.Path converts it."""
        if value == "":
            self.fail("the path is empty", param, ctx)
        if isinstance(value, str) and "\0" in value:
            self.fail("the path has a null character", param, ctx)
        if isinstance(value, str):
            value = _without_missing_parts(value)
            _require_access(value)
        return super().convert(value, param, ctx)


def _require_access(path: str) -> None:
    """Raise PermissionError for an existing path that this user may not read."""
    if os.path.exists(path) and not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def _without_missing_parts(path: str) -> str:
    """The path without `missing/..`, which a process that may write in the path's folder alone
    could not create. Other `..` stay, because they may follow a link.
    """
    remaining: list[str] = []
    parts = Path(path).parts
    for part in parts:
        goes_up = part == ".." and remaining and remaining[-1] != ".."
        if goes_up and not os.path.lexists(Path(*remaining)):
            remaining.pop()
        else:
            remaining.append(part)
    if len(remaining) == len(parts):
        return path
    return str(Path(*remaining))


def create_folder(folder: Path, option: str) -> None:
    """Create the folder that is the value of `option`, unless it exists.

    Raises EnvironmentProblem if it cannot be created or is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        problem = "" if os.access(folder, os.W_OK | os.X_OK) else "is not writable"
    except OSError as error:
        problem = f"cannot be created: {error.strerror}"
    if problem:
        raise EnvironmentProblem(
            f"the folder {problem}", where=str(folder), fix=f"use another {option}"
        )


class PathOrUrl(NamedPath):
    """A path, or a URL that fsspec opens. `file:///path` is a path.

    With `writes` the command may change the files at the URL.
    """

    def __init__(self, *, writes: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.writes = writes

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """The value as NamedPath converts it, or a Url."""
        if isinstance(value, str) and value.startswith("file:///"):
            value = unquote(value.removeprefix("file://"))
        if isinstance(value, str) and "://" in value:
            return Url(value)
        return super().convert(value, param, ctx)


class LocalPath(NamedPath):
    """A local path. A URL is refused, because it would be taken as a folder name."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """The value as NamedPath converts it."""
        if isinstance(value, str) and "://" in value:
            self.fail("a URL cannot be used here; use a local path", param, ctx)
        return super().convert(value, param, ctx)


@contextlib.contextmanager
def local(context: click.Context, terminal: Terminal) -> Iterator[None]:
    """Replace URLs among the command's parameters by local paths inside the block.

    Raises the errors of builder.store.buckets.opened, and UsageError for options that require local
    folders.
    """
    urls = {name: url for name, url in context.params.items() if isinstance(url, Url)}
    if not urls:
        yield
        return
    refused = [text for name, text in LOCAL_ONLY.items() if context.params.get(name)]
    if refused:
        raise UsageError(
            f"with a URL there is no {', '.join(refused)}", fix="use local folders"
        )
    writes = {
        parameter.name
        for parameter in context.command.params
        if isinstance(parameter.type, PathOrUrl) and parameter.type.writes
    }
    with contextlib.ExitStack() as stack:
        for name, url in urls.items():
            mirror = stack.enter_context(
                store.buckets.opened(url, writes=name in writes)
            )
            context.params[name] = mirror.path
            terminal.names[str(mirror.path)] = url
            terminal.names[str(mirror.copy)] = url.rstrip("/").rpartition("/")[0]
            if name in writes:
                terminal.before_result.append(mirror.publish)
        yield
