"""URLs that fsspec opens, and Triton's spelling of those on Azure.

fsspec and its packages read credentials from the environment.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from builder.errors import EnvironmentProblem, UsageError

AZURE = "as://"
"""Triton's scheme: as://ACCOUNT/CONTAINER/PATH. Packages of fsspec have abfs://CONTAINER/PATH."""
TRITON_KEY = "AZURE_STORAGE_KEY"
"""Triton's variable for an account's key. adlfs has AZURE_STORAGE_ACCOUNT_KEY."""
CONNECTION = "AZURE_STORAGE_CONNECTION_STRING"


def is_url(text: str) -> bool:
    """Whether this is a URL and not a local path."""
    return "://" in text


def local_folder(text: str) -> Path | None:
    """The folder of this machine that a path or a file:// URL names; None for other URLs."""
    if not is_url(text):
        return Path(text)
    if urlsplit(text).scheme not in ("file", "local"):
        return None
    return Path(file_system(text)[1])


def refuse_password(url: str) -> None:
    """Raise UsageError if a URL has a password, which would appear in logs and records."""
    if is_url(url) and urlsplit(url).password is not None:
        parts = urlsplit(url)
        raise UsageError(
            f"the URL of {parts.hostname} has a password, which would be written to logs",
            fix="remove it; the packages of fsspec read credentials from the environment",
        )


def target(url: str) -> tuple[str, dict[str, Any]]:
    """The URL for fsspec, and options of its file system.

    Raises UsageError for a URL with a password. For Azure, also raises it if the URL has no account
    and container, or another account than the connection string in the environment.
    """
    refuse_password(url)
    if not url.startswith(AZURE):
        return url, {}
    account, _, path = url.removeprefix(AZURE).partition("/")
    if not account or not path.strip("/"):
        raise UsageError(
            f"{url} names no account and container", fix="as://ACCOUNT/CONTAINER/PATH"
        )
    match = re.search(r"(?:^|;)AccountName=([^;]*)", os.environ.get(CONNECTION, ""))
    if match and match[1] != account:
        raise UsageError(
            f"{url} is of the account {account}, and {CONNECTION} of {match[1]}",
            fix="change one of them",
        )
    options = {"account_name": account}
    if (
        TRITON_KEY in os.environ
        and "AZURE_STORAGE_ACCOUNT_KEY" not in os.environ
        and not match
    ):
        options["account_key"] = os.environ[TRITON_KEY]
    return f"abfs://{path}", options


def opened(url: str, label: str, example: str) -> tuple[Any, str]:
    """The same as `file_system`. UsageError for a URL that is none, with `label` as its name and an
    `example`, and EnvironmentProblem without the package of its protocol. Other errors are those of
    the backend: some connect immediately.
    """
    try:
        return file_system(url)
    except ValueError as error:
        raise UsageError(
            f"{label}: {error}", fix=f"use a folder, or a URL such as {example}"
        ) from error
    except ImportError as error:
        raise EnvironmentProblem(
            f"{label}: {error}", fix="install the package that it names"
        ) from error


def file_system(url: str) -> tuple[Any, str]:
    """fsspec's file system for the URL, and the path on it. Raises the errors of `target` and of
    the protocol's package.
    """
    from fsspec.core import url_to_fs

    known, options = target(url)
    fs, root = url_to_fs(known, **options)
    return fs, str(root)
