"""The source code of classes and functions, found once a process.

torch.jit.script asks `inspect` for the source of a module's class several times whenever it
compiles one, and before Python 3.13 each call parses the class's whole file. This took half of the
processor time of the tests that script modules.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["remember_source_lines"]


def remember_source_lines() -> None:
    """Replace `inspect.getsourcelines` by one that looks up each class and function once."""
    look_up = inspect.getsourcelines
    known: WeakKeyDictionary[Any, tuple[list[str], int]] = WeakKeyDictionary()

    @functools.wraps(look_up)
    def getsourcelines(object: Any) -> tuple[list[str], int]:
        owner = object.__func__ if inspect.ismethod(object) else object
        if not isinstance(owner, type | types.FunctionType):
            return look_up(object)
        if owner not in known:
            known[owner] = look_up(owner)
        lines, first = known[owner]
        return list(lines), first

    inspect.getsourcelines = getsourcelines
