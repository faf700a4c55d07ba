"""Names for layers and tensors that lead back to the model's source."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

from builder.lowering.containers import Containers, path_of

_FILE_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_MARKER = re.compile(r"^\s*~+\s*<--- HERE|^\s*~[~.]*\s*$|^\s*~+")


def where(node: Any) -> str:
    """`model.py:12: x = torch.relu(x)` of a torch._C.Node: file, line and the source text that it came from."""
    text = node.sourceRange()
    place = _FILE_LINE.search(text)
    lines = text.splitlines()
    marked = next((i for i, line in enumerate(lines) if "<--- HERE" in line or _MARKER.match(line)), None)
    source = lines[marked - 1].strip() if marked else ""
    location = f"{place.group(1)}:{place.group(2)}" if place else "graph"
    return f"{location}: {source}" if source else location


def scope(node: Any, containers: Containers = MappingProxyType({})) -> str:
    """The module that the node came from, as `encoder.layers.3.self_attn`; empty where the file does not tell.

    A trace in memory says the whole path. Of a script, and of a file, torch keeps the name under which each module was
    called, and `containers` the lists that hold them. A module that was frozen and saved has neither.
    """
    innermost = node.scopeName().rsplit("/", 1)[-1].rsplit("::", 1)[-1]
    if innermost:
        return innermost.removeprefix("__module").removeprefix(".")  # type: ignore[no-any-return]
    return path_of(node.getModuleHierarchy(), containers)


class LayerNames:
    """Unique layer names `scope/kind_k`; k counts within the scope and kind, and a node's further layers get .1, .2."""

    def __init__(self, containers: Containers = MappingProxyType({})) -> None:
        self._count: dict[str, int] = {}
        self._containers = containers

    def peek(self, node: Any) -> str:
        """The name that the node's first layer will get."""
        stem = self._stem(node)
        return f"{stem}_{self._count.get(stem, -1) + 1}"

    def stem(self, node: Any) -> str:
        """The name of the node's first layer; the next node of its kind gets the next number."""
        stem = self._stem(node)
        count = self._count[stem] = self._count.get(stem, -1) + 1
        return f"{stem}_{count}"

    def _stem(self, node: Any) -> str:
        module = scope(node, self._containers)
        return f"{module}/{node.kind()}" if module else str(node.kind())
