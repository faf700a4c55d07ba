"""Operators on numbers and strings that are evaluated if their arguments are known: lengths of
lists, and keys of dictionaries.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

KNOWABLE = ("IntType", "BoolType", "StringType")
"""Types of the arguments."""


def _format(template: str, *arguments: int | str) -> str | None:
    """Format as torch does: `{}` only. None for a template with other braces."""
    parts = template.split("{}")
    if len(parts) != len(arguments) + 1 or any(
        "{" in part or "}" in part for part in parts
    ):
        return None
    filled = [
        str(argument) + part
        for argument, part in zip(arguments, parts[1:], strict=True)
    ]
    return "".join([parts[0], *filled])


COUNTS: dict[str, Callable[..., Any]] = {
    "aten::add": operator.add,
    "aten::sub": operator.sub,
    "aten::mul": operator.mul,
    "aten::neg": operator.neg,
    "aten::lt": operator.lt,
    "aten::le": operator.le,
    "aten::gt": operator.gt,
    "aten::ge": operator.ge,
    "aten::eq": operator.eq,
    "aten::ne": operator.ne,
    "prim::min": min,
    "prim::max": max,
    "aten::str": str,
    "aten::format": _format,
    "aten::__not__": operator.not_,
    "aten::__range_length": lambda start, end, step: len(range(start, end, step)),
    "aten::__derive_index": lambda index, start, step: start + index * step,
}
"""None: not computed."""
