"""The canonical text of data: keys are hashes of it, and records are compared by it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def normalized(value: object) -> Any:
    """The value after a round trip through JSON: tuples become lists; keys and paths
    become text.
    """
    return json.loads(text(value))


def text(value: object) -> str:
    """Canonical JSON: sorted keys, no whitespace.

    Raises TypeError for values that are not data, so that no key includes a memory address.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_path)


def digest(value: object) -> str:
    """SHA-256 of the canonical text, in hexadecimal."""
    return hashlib.sha256(text(value).encode()).hexdigest()


def _path(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a key cannot cover a {type(value).__name__}")
