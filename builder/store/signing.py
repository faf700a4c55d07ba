"""The key of the builders that share a store, and the signatures of its records.

Others may write to a store's folder or bucket, and a plan in it is code that a server runs. A
record is valid only if it is signed (HMAC-SHA256) with this builder's key. The process that runs a
model cannot read the key. It requests signatures from the process that started it (`HANDLERS`).
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from builder import processes

KEY_VARIABLE = "TRT_BUILD_STORE_KEY"
SIGN = "sign"
IS_SIGNED = "is signed"
LEAST = 16
"""Minimum number of characters of a key."""


def key_file() -> Path:
    """The path of the key if KEY_VARIABLE is not set: `store.key` in processes.secrets_folder()."""
    return processes.secrets_folder() / "store.key"


def key() -> bytes:
    """The builder's key. The first use creates its file.

    Raises OSError if the file cannot be created or read, or others may read it, and ValueError if
    the key is too short.
    """
    text = os.environ.get(KEY_VARIABLE)
    if text is None:
        text = _read_key(key_file())
    if len(text) < LEAST:
        raise ValueError(
            f"the store's key ({KEY_VARIABLE}) has fewer than {LEAST} characters"
        )
    return text.encode()


def prepare() -> None:
    """Create the key's file if it is missing, so that a sandbox can hide it. Errors are reported
    when the key is used.
    """
    with contextlib.suppress(OSError, ValueError):
        key()


def sign(text: str) -> str:
    """The signature of the text, 64 hexadecimal digits."""
    if processes.can_ask(SIGN):
        return str(processes.call_parent(SIGN, text))
    return hmac.new(key(), text.encode(), hashlib.sha256).hexdigest()


def is_signed(text: str, signature: object) -> bool:
    """Whether `signature` is the text's."""
    if processes.can_ask(IS_SIGNED):
        return bool(processes.call_parent(IS_SIGNED, text, signature))
    return isinstance(signature, str) and hmac.compare_digest(
        sign(text).encode(), signature.encode(errors="replace")
    )


HANDLERS: dict[str, Callable[..., Any]] = {SIGN: sign, IS_SIGNED: is_signed}
"""The functions that a worker which uses the store calls in its parent (processes.Task)."""


def _read_key(file: Path) -> str:
    if not file.exists():
        _make(file)
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode) or mode & 0o077:
        raise PermissionError(
            f"{file} must be a file that only its owner can read: chmod 600 {file}"
        )
    return file.read_text(encoding="ascii").strip()


def _make(file: Path) -> None:
    """Write a new key, completely. If another process writes one first, that key stays."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    staged = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    handle = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as stream:
            stream.write(f"{secrets.token_hex(32)}\n")
        with contextlib.suppress(FileExistsError):
            os.link(staged, file)
    finally:
        staged.unlink(missing_ok=True)
