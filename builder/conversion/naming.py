"""Names of layers and tensors, from the model's modules."""

from __future__ import annotations

from types import MappingProxyType

from builder.graph_types import Node
from builder.lowering import Containers, path_of


def module_scope(node: Node, containers: Containers) -> str:
    """The module of the node, such as `encoder.layers.3.self_attn`; empty if unknown.

    A trace in memory has the whole path. For a script or a file, torch keeps the name of each
    called module, and `containers` has the lists that contain them. A module that was frozen and
    saved has neither.
    """
    innermost = node.scopeName().rsplit("/", 1)[-1].rsplit("::", 1)[-1]
    if innermost:
        return innermost.removeprefix("__module").removeprefix(".")
    return path_of(node.getModuleHierarchy(), containers)


class LayerNames:
    """Unique layer names `scope/kind_k`; k counts within the scope and kind, and a node's further
    layers get .1, .2.
    """

    def __init__(self, containers: Containers = MappingProxyType({})) -> None:
        self._count: dict[str, int] = {}
        self._containers = containers

    def peek(self, node: Node) -> str:
        """The future name of the node's first layer."""
        stem = self._stem(node)
        return f"{stem}_{self._count.get(stem, -1) + 1}"

    def stem(self, node: Node) -> str:
        """The name of the node's first layer; the next node of its kind gets the next number."""
        stem = self._stem(node)
        count = self._count[stem] = self._count.get(stem, -1) + 1
        return f"{stem}_{count}"

    def _stem(self, node: Node) -> str:
        module = module_scope(node, self._containers)
        if module:
            return f"{module}/{node.kind()}"
        return str(node.kind())
