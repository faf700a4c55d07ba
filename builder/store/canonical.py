"""One text for equal data: what keys are hashed from, and what records are compared as."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def plain(value: object) -> Any:
    """The value as JSON would give it back: tuples are lists, keys are text, paths are text."""
    return json.loads(text(value))


def text(value: object) -> str:
    """Canonical JSON: keys sorted, no blanks. Raises TypeError for what is no data, so that no key
    covers an address in memory.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_path)


def digest(value: object) -> str:
    """SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(text(value).encode()).hexdigest()


def _path(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a key cannot cover a {type(value).__name__}")
