"""Suggests the known word that is nearest to what the user wrote."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

DTYPE_ALIASES = {
    "float": "float32",
    "fp32": "float32",
    "single": "float32",
    "f32": "float32",
    "half": "float16",
    "fp16": "float16",
    "f16": "float16",
    "bf16": "bfloat16",
    "double": "float64",
    "fp64": "float64",
    "f64": "float64",
    "int": "int32",
    "long": "int64",
    "byte": "uint8",
    "char": "int8",
    "boolean": "bool",
}
PRECISION_ALIASES = {
    "float32": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "float": "fp32",
}


def nearest(word: object, known: Iterable[str]) -> str | None:
    """The known word that `word` most likely means, or None."""
    known = list(known)
    text = str(word).lower().removeprefix("torch.").removeprefix("type_")
    alias = DTYPE_ALIASES.get(text) or text
    for candidate in (text, alias, PRECISION_ALIASES.get(text)):
        if candidate in known:
            return candidate
    lowered = {name.lower(): name for name in known}
    matches = difflib.get_close_matches(text, lowered, n=1, cutoff=0.6)
    return lowered[matches[0]] if matches else None


def did_you_mean(word: object, known: Iterable[str], *, otherwise_list: bool = True) -> str | None:
    """`did you mean 'x'?`, or the list of known words if none is near."""
    known = list(known)
    match = nearest(word, known)
    if match is not None:
        return f"did you mean {match!r}?"
    return f"one of {', '.join(known)}" if known and otherwise_list else None
