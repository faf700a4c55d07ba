"""Where a module's lists of layers stand: what torch's own record of calls leaves out.

An inlined node records the name of each module through which it was called (`encoder`, `3`,
`self_attn`), but not the list that a layer was taken from. The module decides: its layer called
`3`, of that class, is `layers.3`.
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
"""By a module's class, the name that it calls a layer by, and the layer's class: the path that it
means.
"""


class Modules(Protocol):
    """A ScriptModule, or the module tree of an exported program."""

    def named_children(self) -> Iterator[tuple[str, Any]]:
        """Name and module of each that this one contains."""


def containers(module: Modules) -> Containers:
    """What every name of a layer in a list means; a name that two lists use for layers of one class
    is left out.

    The outermost module's class is the empty string.
    """
    found: dict[tuple[str, str, str], str] = {}
    doubtful: set[tuple[str, str, str]] = set()
    for key, path in _listed(module, "", ""):
        if found.setdefault(key, path) != path:
            doubtful.add(key)
    return {key: path for key, path in found.items() if key not in doubtful}


def _listed(module: Any, kind: str, prefix: str) -> Iterator[tuple[tuple[str, str, str], str]]:
    """The layers in the lists of all modules; `prefix` is the path from the last that is no list,
    of class `kind`.
    """
    for name, child in module.named_children():
        own = str(child.original_name)
        if prefix:
            yield (kind, name, own), prefix + name
        yield from (
            _listed(child, kind, f"{prefix}{name}.") if own in LISTS else _listed(child, own, "")
        )


def path_of(hierarchy: str, known: Containers) -> str:
    """`encoder.layers.3` of torch's `encoder(Encoder).3(Layer)`."""
    owner, parts = "", []
    for name, kind in _CALLED.findall(hierarchy):
        if name == UNKNOWN:
            continue
        parts.append(known.get((owner, name, kind), name))
        owner = kind
    return ".".join(parts)
