"""Parameters that name a folder of this machine or at a URL, such as s3://bucket/models.

A command gets a path: of a URL that of a copy. What it changes there is written back just before
it shows its result, and messages name the URL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click

from builder.cli.terminal import Terminal

LOCAL_ONLY = {
    "write_env": "--write-env (the file is written beside a repository of this machine)",
    "search_precision": "--search-precision (it writes into manifests)",
}
"""Options that need folders of this machine, by parameter."""


class Url(str):
    """A folder that is not on this machine."""


class Place(click.Path):
    """A path, or a URL that fsspec opens; the command may change what is at the URL if `writes`."""

    def __init__(self, *, writes: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.writes = writes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value as click.Path gives it, or a Url."""
        if isinstance(value, str) and "://" in value:
            return Url(value)
        return super().convert(value, param, ctx)


class LocalPath(click.Path):
    """A path of this machine. A URL is refused: it would be the name of a strange folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The value as click.Path gives it."""
        if isinstance(value, str) and "://" in value:
            self.fail("a URL cannot be used here: name a path of this machine", param, ctx)
        return super().convert(value, param, ctx)


@contextlib.contextmanager
def local(context: click.Context, terminal: Terminal) -> Iterator[None]:
    """Put paths in the place of the URLs among the command's parameters, for the block.

    Raises what builder.store.buckets.opened raises, and UsageError for options that need folders
    of this machine.
    """
    urls = {name: url for name, url in context.params.items() if isinstance(url, Url)}
    if not urls:
        yield
        return
    from builder.errors import UsageError
    from builder.store import buckets

    refused = [text for name, text in LOCAL_ONLY.items() if context.params.get(name)]
    if refused:
        raise UsageError(
            f"with a URL there is no {', '.join(refused)}", fix="use folders of this machine"
        )
    writes = {
        one.name
        for one in context.command.params
        if isinstance(one.type, Place) and one.type.writes
    }
    with contextlib.ExitStack() as stack:
        for name, url in urls.items():
            mirror = stack.enter_context(buckets.opened(url, writes=name in writes))
            context.params[name] = mirror.path
            terminal.names[str(mirror.path)] = url
            terminal.names[str(mirror.copy)] = url.rstrip("/").rpartition("/")[0]
            if name in writes:
                terminal.before_result.append(mirror.publish)
        yield
