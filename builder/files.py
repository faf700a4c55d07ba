"""Files that are written as a whole, and the reading of documents that trt-build wrote."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from builder.errors import UsageError


def write(file: Path, data: bytes, *, keep_mode: bool = False) -> None:
    """Write the data by one rename: readers see the old file or the new one.

    The file gets the mode 644. With `keep_mode`, an existing file keeps its mode. Raises OSError.
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
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "wb") as staged:
            staged.write(data)
            staged.flush()
            os.fsync(staged.fileno())
        if keep_mode and file.exists():
            shutil.copymode(file, name)
        else:
            Path(name).chmod(0o644)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
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
