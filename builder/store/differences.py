"""Describe the changed parts of a key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_HASH = re.compile(r"[0-9a-f]{16}|[0-9a-f]{64}")
_RANGE = re.compile(r"inputs\.[^.]+\.dims\.(?P<axis>.+)")
_LONGEST = 60
ABSENT = "none"


def changes(
    before: Mapping[str, Any], after: Mapping[str, Any], derived: Sequence[str] = ()
) -> list[str]:
    """A line for each part that differs, such as `precision fp32 -> fp16`.

    A part that is a hash reads `source changed`. `derived` names parts that depend on others; they
    are only reported if nothing else differs. The same applies to an input's range of an axis,
    which includes the ranges of the profiles.
    """
    old = dict(flattened(before))
    new = dict(flattened(after))
    # None is never a leaf
    all_names = dict.fromkeys([*old, *new])
    names = [name for name in all_names if old.get(name) != new.get(name)]
    primary = [
        name
        for name in names
        if name.split(".")[0] not in derived and not _spans_another(name, names)
    ]
    return [_change(name, old.get(name), new.get(name)) for name in primary or names]


def because(
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any],
    derived: Sequence[str] = (),
) -> str:
    """The changes in one line.

    Returns `no earlier build` if `before` is None, and an empty text if nothing changed.
    """
    if before is None:
        return "no earlier build"
    return ", ".join(changes(before, after, derived))


def flattened(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """(`inputs.image.dtype`, value) for every leaf that is not empty.

    Members of a list are named by their `name`, if they have one.
    """
    if value is None or value in ({}, [], ()):
        return  # empty values count as absent
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from flattened(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for index, item in enumerate(value):
            name = None
            if isinstance(item, Mapping):
                name = item.get("name")
            yield from flattened(item, f"{path}.{name or index}")
    else:
        yield path, value


def display_text(value: object) -> str:
    """The value as text for users: the beginning of a hash, text without quotes, None as `none`."""
    if value is None:
        return ABSENT
    if value == ABSENT:  # "none" is a value of some options
        return json.dumps(value)
    if isinstance(value, list) and any(map(_is_hash, value)):
        return f"[{', '.join(map(display_text, value))}]"
    text = value if isinstance(value, str) else json.dumps(value)
    if _HASH.fullmatch(text):
        return text[:12]
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST - 3]}..."


def _spans_another(name: str, names: Sequence[str]) -> bool:
    """Whether `name` is an input's range of an axis, and `names` includes a profile of
    that axis.
    """
    match = _RANGE.fullmatch(name)
    return match is not None and any(
        candidate.startswith("profiles.")
        and candidate.split(".", 2)[2] == match["axis"]
        for candidate in names
    )


def _change(name: str, old: object, new: object) -> str:
    if _has_hash(old) and _has_hash(new):
        return f"{name} changed"
    if isinstance(old, list) and isinstance(new, list):
        length = max(len(json.dumps(old)), len(json.dumps(new)))
        if length > _LONGEST:
            return f"{name} {_members(old, new)}"
    return f"{name} {display_text(old)} -> {display_text(new)}"


def _members(old: list[str], new: list[str]) -> str:
    """For lists that are too long to show: the members that only one of them has."""
    gone = [item for item in old if item not in new]
    come = [item for item in new if item not in old]
    words = [f"+{display_text(item)}" for item in come]
    words += [f"-{display_text(item)}" for item in gone]
    return display_text(" ".join(words) or "reordered")


def _has_hash(value: object) -> bool:
    """Whether the value is a hash, or a list with one."""
    if isinstance(value, list):
        return any(map(_is_hash, value))
    return _is_hash(value)


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and _HASH.fullmatch(value) is not None
