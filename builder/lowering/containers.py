"""Paths of layers that are in lists.

An inlined node records the name of each module in its call stack (`encoder`, `3`, `self_attn`), but
not the list that a layer is in. The module tree resolves it: the layer of this class with the name
`3` is `layers.3`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

LISTS = ("ModuleList", "ModuleDict", "Sequential")
UNKNOWN = "UNKNOWN_INSTANCE"
"""torch's record of a called function that belongs to no module."""
_CALLED = re.compile(r"([^.()]+)\(([^()]*)\)")

Containers = Mapping[tuple[str, str, str], str]
"""The path of a layer, by the class of the calling module, the layer's name in the record, and the
layer's class.
"""


class Modules(Protocol):
    """A ScriptModule, or the module tree of an exported program."""

    def named_children(self) -> Iterator[tuple[str, Any]]:
        """The name and module of each direct child."""


def containers(module: Modules) -> Containers:
    """The path of every layer in a list.

    A name that two lists use for layers of one class is ambiguous and left out. The class of the
    outermost module is the empty string.
    """
    paths: dict[tuple[str, str, str], str] = {}
    ambiguous: set[tuple[str, str, str]] = set()
    for key, path in _listed(module, "", ""):
        if paths.setdefault(key, path) != path:
            ambiguous.add(key)
    return {key: path for key, path in paths.items() if key not in ambiguous}


def _listed(
    module: Any, kind: str, prefix: str
) -> Iterator[tuple[tuple[str, str, str], str]]:
    """The layers in the lists of all modules. `prefix` is the path from the last module that is not
    a list, which has the class `kind`.
    """
    for name, child in module.named_children():
        class_name = str(child.original_name)
        if prefix:
            yield (kind, name, class_name), prefix + name
        if class_name in LISTS:
            yield from _listed(child, kind, f"{prefix}{name}.")
        else:
            yield from _listed(child, class_name, "")


def path_of(hierarchy: str, paths: Containers) -> str:
    """The path `encoder.layers.3` for torch's record `encoder(Encoder).3(Layer)`."""
    owner = ""
    parts = []
    for name, kind in _CALLED.findall(hierarchy):
        if name == UNKNOWN:
            continue
        parts.append(paths.get((owner, name, kind), name))
        owner = kind
    return ".".join(parts)
