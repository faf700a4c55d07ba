"""Suggest the known word that is closest to the user's input."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from builder import dtypes, precisions


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known word that `word` most likely means, or None."""
    known = list(known)
    text = str(word).lower().removeprefix("torch.").removeprefix("type_")
    alias = dtypes.ALIASES.get(text) or text
    for candidate in (text, alias, precisions.ALIASES.get(text)):
        if candidate in known:
            return candidate
    lowered = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(text, lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None


def did_you_mean(
    word: object, known: Iterable[str], *, otherwise_list: bool = True
) -> str | None:
    """`did you mean 'x'?`, or the list of known words if none is near."""
    known = list(known)
    match = nearest(word, known)
    if match is not None:
        return f"did you mean {match!r}?"
    if known and otherwise_list:
        return f"use one of {', '.join(known)}"
    return None
