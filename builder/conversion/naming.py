"""Names for layers and tensors that lead back to the model's source."""

from __future__ import annotations

import re
from typing import Any

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


def scope(node: Any) -> str:
    """The module that the node came from, as `encoder.layers.3.self_attn`; empty where the file does not tell."""
    names = [part.rsplit("::", 1)[-1] for part in node.scopeName().split("/") if part]
    return ".".join(name for name in names if name and not name.startswith("__module"))


class LayerNames:
    """Unique layer names `scope/kind_k`; k counts within the scope and kind, and a node's further layers get .1, .2."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}

    def peek(self, node: Any) -> str:
        """The name that the node's first layer will get."""
        stem = _stem(node)
        return f"{stem}_{self._count.get(stem, 0)}"

    def stem(self, node: Any) -> str:
        """The name of the node's first layer; the next node of its kind gets the next number."""
        name, stem = self.peek(node), _stem(node)
        self._count[stem] = self._count.get(stem, 0) + 1
        return name


def _stem(node: Any) -> str:
    module = scope(node)
    return f"{module}/{node.kind()}" if module else str(node.kind())
