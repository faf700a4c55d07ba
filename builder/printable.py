"""Text for people: counts with their nouns, and text of models and files with escapes in place of
control characters.

Without escapes, a name or a message could move the cursor, change the title, or hide earlier
output.
"""

from __future__ import annotations

import re
from typing import Any, TextIO

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""C0 and C1 control characters except tab and newline, those that change the direction, and
surrogates, which Python has in place of the bytes of a file name that are not UTF-8.
"""


def printable(text: str) -> str:
    r"""The text with escapes such as \x1b in place of control characters; \n and \t stay."""
    return _CONTROL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    number = ord(match[0])
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """The count with its noun, such as `1 branch` or `3 branches`. The default plural adds an s."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {plural or f'{noun}s'}"


class PrintableStream:
    """A text stream that writes printable text. All other members are those of the
    wrapped stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the text with its control characters escaped. Returns its length."""
        self._stream.write(printable(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
