"""SHA-256 of files, cached by their file system metadata, like git's index."""

from __future__ import annotations

import contextlib
import errno
import json
import time
from pathlib import Path

from builder import files
from builder.engine import cache_folder
from builder.torchscript import sha256

RACY_SECONDS = 2.0
"""A file that changed within this many seconds is not cached: it may change again within one tick
of the file system's clock.
"""


class Hashes:
    """Hashes files. A file is not read again if its size, times and inode equal the cached ones.

    The change time (ctime) is also compared, because unlike the modification time it cannot be set
    back. A context manager that writes the cache on exit. An unreadable or unwritable cache only
    costs time.
    """

    def __init__(self, file: Path | None = None) -> None:
        self.file = file or cache_folder() / "hashes.json"
        self._known: dict[str, list[int | str]] = {}
        self._learnt = False
        with contextlib.suppress(OSError, ValueError):
            read = json.loads(self.file.read_text(encoding="utf-8"))
            known = read.items() if isinstance(read, dict) else ()
            self._known = {
                path: entry
                for path, entry in known
                if isinstance(entry, list) and entry
            }

    def sha256(self, path: Path) -> str:
        """The file's SHA-256 in hexadecimal. Raises OSError if it cannot be read."""
        path = path.resolve()
        state = _state(path)
        if not path.is_file():  # opening a pipe blocks until something writes to it
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        known = self._known.get(str(path))
        if known and known[:-1] == state:
            return str(known[-1])
        digest = sha256(path)
        age = time.time() - max(state[1], state[2]) / 1e9
        if _state(path) == state and age > RACY_SECONDS:
            self._known[str(path)] = [*state, digest]
            self._learnt = True
        return digest

    def __enter__(self) -> Hashes:
        return self

    def __exit__(self, *_: object) -> None:
        if self._learnt:
            with contextlib.suppress(OSError):
                self._write()

    def _write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(self.file, json.dumps(self._known), keep_mode=True)


def _state(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
