"""Files that are written as a whole, and the reading of documents that trt-build wrote."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from builder.errors import UsageError


def write(file: Path, data: bytes, *, keep_mode: bool = False) -> None:
    """Write the data by one rename: readers see the old file or the new one.

    The umask decides the mode of the file. With `keep_mode`, an existing file keeps its mode.
    Raises OSError.
    """
    with naming(file):
        _write(file, data, keep_mode)


@contextlib.contextmanager
def naming(file: Path) -> Iterator[None]:
    """Let an OSError inside the block that names no file, or the temporary one, name this file."""
    try:
        yield
    except OSError as error:
        name = Path(str(error.filename or "")).name
        if not name or name.startswith(f".{file.name}."):
            error.filename = str(file)
        raise


def _write(file: Path, data: bytes, keep_mode: bool) -> None:
    name = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(handle, "wb") as staged:
            staged.write(data)
            staged.flush()
            os.fsync(staged.fileno())
        if keep_mode and file.exists():
            shutil.copymode(file, name)
        os.replace(name, file)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def write_text(file: Path, text: str, *, keep_mode: bool = False) -> None:
    """`write` the text in UTF-8."""
    write(file, text.encode(), keep_mode=keep_mode)


def read_document(
    file: Path, check: Callable[[Any], object], *, subject: str, fix: str
) -> dict[str, Any]:
    """Read a JSON document that trt-build wrote. `check` raises if it has another format.

    Raises UsageError if the file is not such a document, which `subject` names.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        check(document)
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        if isinstance(error, OSError):
            reason = error.strerror or error
        raise UsageError(
            f"not a {subject}: {reason}", where=str(file), fix=fix
        ) from error
    return dict(document)
