"""Files that are written as a whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_text(file: Path, text: str) -> None:
    """Write the text by one rename: readers see the old file or the new one. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as staged:
            staged.write(text)
        Path(name).chmod(0o644)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
