"""Where a module's lists of layers stand: what torch's own record of calls leaves out.

A node that was inlined knows by which name each module on its way was called (`encoder`, `3`, `self_attn`), but not
the list that a layer was taken from. The module tells: its layer called `3`, of that class, is `layers.3`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

LISTS = ("ModuleList", "ModuleDict", "Sequential")
UNKNOWN = "UNKNOWN_INSTANCE"
"""What torch's record says of a function that was called, which no module owns."""
_CALLED = re.compile(r"([^.()]+)\(([^()]*)\)")

Containers = Mapping[tuple[str, str, str], str]
"""By a module's class, the name that it calls a layer by, and the layer's class: the path that it means."""


def containers(module: torch.jit.ScriptModule) -> Containers:
    """What every name of a layer in a list means; a name that stands in two lists for layers of one class is left out.

    The outermost module's class is the empty string.
    """
    found: dict[tuple[str, str, str], str] = {}
    doubtful: set[tuple[str, str, str]] = set()
    for place, owner in enumerate(module.modules()):
        kind = owner.original_name if place else ""
        for path, child in _listed(owner, ""):
            key = (str(kind), path.rpartition(".")[2], str(child.original_name))
            if found.setdefault(key, path) != path:
                doubtful.add(key)
    return {key: path for key, path in found.items() if key not in doubtful}


def _listed(owner: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """The layers in the lists of a module, and in lists within them, by their paths."""
    for name, child in owner.named_children():
        path = f"{prefix}{name}"
        if prefix:
            yield path, child
        if child.original_name in LISTS:
            yield from _listed(child, f"{path}.")


def path_of(hierarchy: str, known: Containers) -> str:
    """`encoder.layers.3` of torch's `encoder(Encoder).3(Layer)`."""
    owner, parts = "", []
    for name, kind in _CALLED.findall(hierarchy):
        if name == UNKNOWN:
            continue
        parts.append(known.get((owner, name, kind), name))
        owner = kind
    return ".".join(parts)
