"""Formats figures for HTML, Markdown and the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def percent(share: float | None) -> str:
    """Format a share of a tolerance, such as `12 %`. An exact output that differs has no share."""
    if share is None:
        return ""
    if share == float("inf"):
        return "not equal"
    if share < 1:
        return f"{share * 100:.2g} %"
    return f"{share * 100:.0f} %"


def size(count: float | None) -> str:
    """Format a number of bytes, such as `1.5 MiB`."""
    if count is None:
        return ""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            if unit == "B":
                return f"{count:.0f} {unit}"
            return f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _formatter(form: str) -> Callable[[float | None], str]:
    return lambda value: "" if value is None else form.format(value)


def error(value: float | None) -> str:
    """Format an error, such as `1.2e-06`."""
    if value is None:
        return ""
    return f"{value:.1e}" if value else "0"


def number(value: float | str) -> str:
    """Format a number: whole numbers in full, others with 4 digits."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


KINDS: Mapping[str, Callable[[Any], str]] = {
    "percent": percent,
    "size": size,
    "milliseconds": _formatter("{:.2f} ms"),
    "seconds": _formatter("{:.1f} s"),
    "rate": _formatter("{:.1f}/s"),
    "error": error,
    "number": number,
}
"""The format functions by the name that templates use."""


def pointed(document: Any, pointer: str) -> Any:
    """Return the value at a JSON pointer (RFC 6901). Raises LookupError if there is none."""
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        document = document[int(key)] if isinstance(document, list) else document[key]
    return document
