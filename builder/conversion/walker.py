"""Walk a graph: a backend evaluates, converts or refuses every node in order."""

from __future__ import annotations

from typing import Any, Protocol

from builder.conversion import extension
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.precision import Policy
from builder.conversion.registry import key_of_node, users_function
from builder.conversion.shape_tensors import DECIDES, FIX, ShapeTensorInputs
from builder.errors import ConversionError, UnsupportedOperators
from builder.graph_types import Block, Graph, Node, Value
from builder.lowering import source_location

MISSING = object()
"""The value of an output of a refused node. Nodes that read it are also refused."""
MOST_AXES = 8
"""The number of axes that a TensorRT tensor may have."""
_TOO_MANY_AXES = f"Max expected length is {MOST_AXES}"
"""Part of the error of TensorRT's Dims."""


class MissingInput(Unconvertible):
    """The refusal of a node that reads an output of a refused node."""

    def __init__(self) -> None:
        super().__init__("it reads the output of a node that cannot be converted")


Refusal = Unconvertible | ConversionError
"""The reason of a missing result: the node cannot be converted, or its converter failed."""


class Backend(Protocol):
    """The actions of a walk on each node."""

    @property
    def policy(self) -> Policy:
        """The precisions in which converters compute."""

    def evaluate(self, node: Node, values: list[Any]) -> list[Any] | None:
        """The node's outputs if no converter is needed, else None. Raises Unconvertible."""

    def convert(self, node: Node, values: list[Any]) -> list[Any]:
        """The node's outputs from its converter. Raises Unconvertible."""

    def refuse(self, node: Node, refusal: Refusal) -> list[Any]:
        """The value for the outputs of a refused node. A backend may also raise."""

    def finish(self, node: Node, results: list[Any], first: int) -> None:
        """Name a node's results, and the layers from index `first` on."""


class GraphWalker:
    """Visits the nodes of one block, and of the blocks within it, and keeps their values in the
    context.
    """

    def __init__(self, ctx: ConversionContext, backend: Backend) -> None:
        self.ctx = ctx
        self.backend = backend
        self.shape_tensors = ShapeTensorInputs()
        ctx.walker = self

    def walk(self, block: Block | Graph) -> list[Any]:
        """The values of the block's outputs (a torch._C.Graph or Block)."""
        for node in block.nodes():
            self.visit(node)
        return [self.value(value) for value in block.outputs()]

    def value(self, value: Value) -> Any:
        """The facts of a graph value."""
        return self.ctx.values[value.debugName()]

    def visit(self, node: Node) -> None:
        """Evaluate or convert one node, and record its outputs."""
        first = self.ctx.net.num_layers
        try:
            results = self._results(node, first)
        except (Unconvertible, ConversionError) as refusal:
            self.bind(node, self.backend.refuse(node, refusal))
        else:
            self.bind(node, results)
            self.backend.finish(node, results, first)

    def bind(self, node: Node, results: list[Any]) -> None:
        """Record the values of the node's outputs."""
        names = (value.debugName() for value in node.outputs())
        self.ctx.values.update(zip(names, results, strict=True))

    def _results(self, node: Node, first: int) -> list[Any]:
        values = [self.value(value) for value in node.inputs()]
        if any(is_missing(value) for value in values):
            raise MissingInput
        self.ctx.node = node
        try:
            results = self.backend.evaluate(node, values)
            if results is None:
                results = self.backend.convert(node, values)
            if self.ctx.net.num_layers > first and self.shape_tensors.are_new(
                self.ctx.net
            ):
                self._lose_numbers(node)
                raise Unconvertible(DECIDES, FIX)
        except ConversionError as error:
            error.where = (
                error.where or f"%{output_name(node)} at {source_location(node)}"
            )
            raise
        except (Unconvertible, UnsupportedOperators):
            raise
        except Exception as defect:
            if isinstance(defect, ValueError) and _TOO_MANY_AXES in str(defect):
                raise Unconvertible(
                    f"it makes a tensor of more than {MOST_AXES} axes, which TensorRT lacks"
                ) from defect
            raise self._defect(node, defect) from defect
        return results

    def _lose_numbers(self, node: Node) -> None:
        """Drop numbers that determined a size here, because TensorRT no longer provides them to
        other nodes.
        """
        for value in node.inputs():
            content = self.value(value)
            if not isinstance(content, list):
                content = [content]
            if any(isinstance(number, DynamicScalar) for number in content):
                self.ctx.values[value.debugName()] = MISSING

    def _defect(self, node: Node, defect: Exception) -> ConversionError:
        words = "; ".join(self.ctx.messages[-3:])
        function = users_function(key_of_node(node))
        if function is not None:
            return ConversionError(
                extension.failure(function, node, defect)
                + (f" (TensorRT reports: {words})" if words else ""),
                where=f"%{output_name(node)} at {source_location(node)}",
                fix="correct the plugin; without it trt-build converts the operator if it can",
            )
        return ConversionError(
            f"the converter of {node.kind()} failed: {type(defect).__name__}: {defect}"
            + (f" (TensorRT reports: {words})" if words else ""),
            where=f"%{output_name(node)} at {source_location(node)}",
            fix=(
                "this is a defect of trt-build: please report it with the model's graph (`trt-build"
                " lower`)"
            ),
        )


def is_missing(value: object) -> bool:
    """Whether a value, or one in a list, is MISSING."""
    if isinstance(value, list):
        return any(is_missing(element) for element in value)
    return value is MISSING


def output_name(node: Node) -> str:
    """The name of a node's first output; the node's kind without one."""
    return str(node.outputsAt(0).debugName() if node.outputsSize() else node.kind())
