"""The backend that builds a network. It names layers and tensors, from the model's modules, and
collects all operators that cannot be converted.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from builder.conversion import operators, refusals
from builder.conversion.context import ConversionContext
from builder.conversion.facts import is_tensor
from builder.conversion.precision import Policy
from builder.conversion.registry import CONVERTERS, EVALUATORS, NO_SCHEMA, key_of_node
from builder.conversion.sizes import propagate_sizes
from builder.conversion.walker import MISSING, MissingInput, Refusal, output_name
from builder.engine import ITensor
from builder.errors import ConversionError, UnsupportedOperator
from builder.graph_types import Node
from builder.lowering import Containers, path_of, source_location, source_range

MOST_METADATA = 4000
"""Maximum number of characters: TensorRT silently drops metadata of 4096 or more, and a trace's
stack can be that long.
"""


class NetworkBackend(operators.Operators):
    """Converts nodes into the network of one context. If a node cannot be converted, its outputs
    are MISSING and conversion continues.
    """

    def __init__(
        self,
        ctx: ConversionContext,
        policy: Policy | None = None,
        names: LayerNames | None = None,
    ) -> None:
        super().__init__(ctx, policy or Policy())
        self.names = names or LayerNames()
        self.unsupported: list[UnsupportedOperator] = []
        self._value_names: set[str] = set()

    def layer_name(self, node: Node) -> str:
        """The name from `names`."""
        return self.names.peek(node)

    def refuse(self, node: Node, refusal: Refusal) -> list[Any]:
        """Report the node, unless it only lacks an input. A defect of a converter is raised."""
        if isinstance(refusal, ConversionError):
            raise refusal
        key = key_of_node(node)
        if not isinstance(refusal, MissingInput):
            self.report(node, refusal.reason, refusal.fix)
        elif key not in CONVERTERS and key not in EVALUATORS:
            self.report(node, refusals.reason(key), None)
        return [MISSING] * node.outputsSize()

    def report(self, node: Node, reason: str, fix: str | None) -> None:
        """Record that a node cannot be converted, and the reason."""
        schema = node.schema() if node.schema() != NO_SCHEMA else node.kind()
        fix = fix or operators.FALLBACK_FIX
        self.unsupported.append(
            UnsupportedOperator(
                schema, output_name(node), source_location(node), reason, fix
            )
        )

    def finish(self, node: Node, results: list[Any], first: int) -> None:
        """Name the node's tensors and layers, record its source location as layer metadata, and
        follow the sizes through the layers.
        """
        for value, result in zip(node.outputs(), results, strict=True):
            if is_tensor(result) and result.name.startswith("(Unnamed"):
                self._name_value(result, f"%{value.debugName()}")
        last = self.ctx.net.num_layers
        if first == last:
            return
        stem = self.names.stem(node)
        source = source_range(node)
        for index in range(first, last):
            layer = self.ctx.net.get_layer(index)
            if not layer.name.startswith("(Unnamed"):
                continue  # the node's blocks have already named theirs
            propagate_sizes(self.ctx, layer)
            self._name(layer, stem if index == first else f"{stem}.{index - first}")
            if hasattr(layer, "metadata"):
                layer.metadata = source[:MOST_METADATA]

    def _name_value(self, result: ITensor, name: str) -> None:
        """Name a tensor unless another one has the name, as in an unrolled loop. TensorRT 8.6
        refuses a network with two tensors of one name.
        """
        if name not in self._value_names:
            self._value_names.add(name)
            self.ctx.rename(result, name)

    def _name(self, layer: Any, name: str) -> None:
        """Name a layer and its unnamed tensors, which TensorRT would otherwise rename with the
        layer.
        """
        for index in range(layer.num_outputs):
            output = layer.get_output(index)
            if output.name.startswith("(Unnamed"):
                self.ctx.rename(output, f"{name}:{index}")
        layer.name = name


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
