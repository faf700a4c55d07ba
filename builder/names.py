"""Names of tensors and axes: valid at an endpoint, and unique."""

from __future__ import annotations

import re
from collections.abc import Collection
from itertools import count

TENSOR_NAME = re.compile(r"[A-Za-z0-9_.:-]+")
"""The names that tensors of an endpoint may have: Triton's TensorRT backend cuts a name at a space,
and file names contain no slash.
"""
_INVALID = re.compile(r"^\.|[^A-Za-z0-9_.-]")
"""Characters that names in the manifest may not contain, and a dot at the beginning."""
_LONGEST = 200
"""The greatest length of a name, so that names of files that contain it are not too long."""


def join(prefix: str, part: str | int) -> str:
    """The name of an element of a container: `encoder_out` + `hidden` is `encoder_out.hidden`,
    `boxes` + 0 is `boxes_0`, and an index without a prefix is `output_0`.
    """
    if isinstance(part, int):
        return f"{prefix or 'output'}_{part}"
    return f"{prefix}.{part}" if prefix else part


def served_name(key: str, default: str = "output") -> str:
    """The name at an endpoint of a tensor that the module names `key`, such as a dictionary's key.

    Other characters than letters, digits and `_.-` become `_`, as does a dot at the beginning. A
    long name is cut. An empty name becomes `default`, as does `_`, which TensorRT refuses.
    """
    name = _INVALID.sub("_", key)[:_LONGEST]
    return default if name in ("", "_") else name


def unique_name(name: str, used: Collection[str], separator: str = "_") -> str:
    """The name itself if it is not in `used`, else with the first number from 2 that makes it
    unique: `x_2`.
    """
    if name not in used:
        return name
    numbered = (f"{name}{separator}{number}" for number in count(2))
    return next(candidate for candidate in numbered if candidate not in used)
