"""Execute a lowered graph on tensors with shapes but without data."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode

from builder.conversion import (
    CONVERTERS,
    EVALUATORS,
    MISSING,
    ConversionContext,
    GraphWalker,
    MissingInput,
    Policy,
    Refusal,
    Unconvertible,
    dtype_of_code,
    fold_static,
    key_of_node,
    operators,
)
from builder.errors import ConversionError
from builder.graph_types import Block, Node
from builder.lowering import ir
from builder.partition import packed
from builder.partition.abstract_values import (
    at,
    common,
    fake,
    is_unknown,
    on_meta,
    signature,
    with_known_sizes,
    without_data,
)
from builder.partition.view import Step

MAX_TRIP_COUNT = 64
"""Maximum number of loop iterations that are interpreted one by one."""


def _scalar(default: torch.dtype) -> Callable[[Any], Any]:
    return lambda values: torch.scalar_tensor(
        values[0], dtype=dtype_of_code(values[1]) or default
    )


_IN_PYTHON: dict[str, Callable[[Any], Any]] = {
    "aten::numel": lambda values: values[0].numel(),
    "aten::tensor.int": _scalar(torch.int64),
    "aten::tensor.float": _scalar(torch.float32),
    "aten::tensor.bool": _scalar(torch.bool),
}
"""Queries that torch's operators refuse for a tensor with unknown sizes, but its Python class
supports.
"""
_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "IntType": ShapeEnv.create_unbacked_symint,
    "FloatType": ShapeEnv.create_unbacked_symfloat,
    "BoolType": ShapeEnv.create_unbacked_symbool,
}
"""Functions that create a data-dependent number, by the kind of its type."""


class Memory:
    """A cache of operator results by input shapes: the layers of a model repeat, and shape
    inference is slow.
    """

    def __init__(self) -> None:
        self.known: dict[Any, tuple[list[Any], int]] = {}
        self.counter = FlopCounterMode(display=False)

    def call(self, key: str, outputs: int, values: list[Any]) -> tuple[list[Any], int]:
        """The operator's outputs on meta tensors, and its floating-point operations by torch's
        counter.
        """
        known_by = (key, *map(signature, values))
        if known_by not in self.known:
            with self.counter:
                result = fold_static(key, values)
                flops = int(self.counter.get_total_flops())
            self.known[known_by] = (
                list(result) if outputs > 1 else [result][:outputs],
                flops,
            )
        return self.known[known_by]


class ShapeInterpreter(operators.Operators):
    """A backend that executes nodes on meta tensors.

    A data-dependent size is an unbacked symbol, as in torch.export, for as long as the shapes of
    later values need it. A node without a known rank has MISSING outputs.
    """

    def __init__(
        self, memory: Memory | None = None, sizes: Mapping[str, int] | None = None
    ) -> None:
        """`sizes`: by value, the length of its data-dependent axes, if the user specified a
        range.
        """
        super().__init__(ConversionContext(net=cast(Any, _NoNetwork())), Policy())
        self.walker = GraphWalker(self.ctx, self)
        self.sizes = sizes or {}
        self.sources: dict[str, Any] = {}
        """The first values with data-dependent shapes, by name, with their nodes. Later values
        depend on these.
        """
        self.unknowns = FakeTensorMode(shape_env=ShapeEnv())
        self.memory = memory if memory is not None else Memory()
        self.flops = 0

    def execute(self, step: Step, *, shapes_are_known: bool) -> bool:
        """Execute a top-level node. Returns whether its outputs depend only on the shapes of its
        inputs. `flops` then has its floating-point operations.
        """
        self.flops = 0
        if shapes_are_known and self._by_shapes(step):
            return True
        self.walker.visit(step.node)
        return False

    def _by_shapes(self, step: Step) -> bool:
        """Handle the common case: an operator on tensors with known shapes. Returns whether the
        shapes could be determined.
        """
        values = [self.ctx.values[name] for name in step.inputs]
        if not on_meta(values) or step.key == packed.PACK:
            return False
        try:
            results, self.flops = self.memory.call(
                step.key, len(step.outputs), [without_data(value) for value in values]
            )
        except Exception:
            return False
        self.ctx.values.update(zip(step.outputs, results, strict=True))
        return True

    def evaluate(self, node: Node, values: list[Any]) -> list[Any]:
        """The outputs on meta tensors."""
        if node.kind() == "prim::Loop":
            return self._loop(node, *values)
        try:
            sequence = self._of_packed(node, values)
            if sequence is not None:
                return sequence
            if not on_meta(values) and not is_unknown(values):
                return self._static(node, values)
            key = key_of_node(node)
            if is_unknown(values) and key in _IN_PYTHON:
                return self._with_unknowns(node, values)
            if key in EVALUATORS and key not in CONVERTERS:
                return self._static(node, [without_data(value) for value in values])
            if is_unknown(values):
                return self._with_unknowns(node, values)
            results, flops = self.memory.call(
                key, node.outputsSize(), [without_data(value) for value in values]
            )
            self.flops += flops
            return results
        except Exception:
            # an operator that an evaluator refuses (random numbers) also has a shape
            if node.kind() == "prim::If":
                return self._branch(node)
            return self._with_unknowns(node, values)

    def _of_packed(self, node: Node, values: list[Any]) -> list[Any] | None:
        """Shapes of packed sequences that torch cannot infer, or infers incorrectly."""
        key = key_of_node(node)
        rule = packed.rule(key, values)
        if rule is None:
            return None
        with _disable_current_modes(), self.unknowns:
            outputs = rule(
                values, functools.partial(_NUMBERS["IntType"], self.unknowns.shape_env)
            )
            results = [with_known_sizes(output) for output in outputs]
        if key == packed.PAD:
            return self._ranged(node, results)
        return results

    def _static(self, node: Node, values: list[Any]) -> list[Any]:
        results = super().evaluate(node, values)
        if results is None:
            return self.convert(node, values)
        return results

    def refuse(self, node: Node, refusal: Refusal) -> list[Any]:
        """Handle a node that cannot be evaluated.

        A branch or loop on data can still determine shapes; any other failure is a defect.
        """
        if isinstance(refusal, ConversionError):
            raise refusal
        if isinstance(refusal, MissingInput) and node.kind() == "prim::If":
            return self._branch(node)
        if isinstance(refusal, MissingInput) and node.kind() == "prim::Loop":
            return self._loop(node)
        return [MISSING] * node.outputsSize()

    def finish(self, node: Node, results: list[Any], first: int) -> None:
        """Do nothing: there are no layers to name."""

    def _with_unknowns(self, node: Node, values: list[Any]) -> list[Any]:
        """The node's outputs, with sizes that are numbers or unknown."""
        key = key_of_node(node)
        try:
            with _disable_current_modes(), _without_logs(), self.unknowns:
                evaluate = _IN_PYTHON.get(key, functools.partial(fold_static, key))
                result = evaluate([fake(value) for value in values])
                outputs = result if node.outputsSize() > 1 else [result]
                results = [with_known_sizes(output) for output in outputs]
        except Exception as data_dependent:
            if all(value.type().kind() in _NUMBERS for value in node.outputs()):
                return self._or_numbers(node, [MISSING] * node.outputsSize())
            raise Unconvertible(
                f"its shape depends on data: {data_dependent}"
            ) from data_dependent
        if is_unknown(values):
            return results
        return self._ranged(node, results)

    def _ranged(self, node: Node, results: list[Any]) -> list[Any]:
        """The results of a node with known inputs. Data-dependent sizes get the values of the
        user's range.
        """
        names = [value.debugName() for value in node.outputs()]
        ranged = []
        for name, result in zip(names, results, strict=True):
            if isinstance(result, FakeTensor):
                self.sources[name] = node
            if name in self.sizes:
                result = at(result, self.sizes[name])
            ranged.append(result)
        return ranged

    def _branch(self, node: Node) -> list[Any]:
        """The outputs of a data-dependent branch: the shapes that both blocks share."""
        yes, no = (self.walker.walk(block) for block in node.blocks())
        return self._or_numbers(
            node, [common(first, second) for first, second in zip(yes, no, strict=True)]
        )

    def _or_numbers(self, node: Node, results: list[Any]) -> list[Any]:
        """The results, with a symbol for each data-dependent number: a tensor to which it is added
        keeps its shape.
        """
        with_symbols = []
        for value, result in zip(node.outputs(), results, strict=True):
            new_symbol = _NUMBERS.get(value.type().kind())
            if result is MISSING and new_symbol:
                result = new_symbol(self.unknowns.shape_env)
            with_symbols.append(result)
        return with_symbols

    def _loop(
        self,
        node: Node,
        trip_count: Any = MISSING,
        condition: Any = MISSING,
        *carried: object,
    ) -> list[Any]:
        """Interpret a loop iteration by iteration while shapes determine its condition, up to a
        limit.
        """
        body = ir.first_block(node)
        values = list(carried)
        for trip in range(MAX_TRIP_COUNT):
            if not isinstance(trip_count, int) or not isinstance(condition, bool):
                break
            if is_unknown(values):
                break
            if trip >= trip_count or not condition:
                return values
            condition, *values = self._trip(body, [trip, *values])
        initial = [self.walker.value(value) for value in list(node.inputs())[2:]]
        return self._or_numbers(node, self._any_trip_count(body, initial))

    def _any_trip_count(self, body: Block, carried: list[Any]) -> list[Any]:
        """The outputs for any trip count: the loop-carried values whose shapes no iteration
        changes.
        """
        while True:
            after = [
                common(first, second)
                for first, second in zip(
                    carried, self._trip(body, [MISSING, *carried])[1:], strict=True
                )
            ]
            missing_before = [value is MISSING for value in carried]
            missing_after = [value is MISSING for value in after]
            if missing_after == missing_before:
                return after
            carried = after

    def _trip(self, body: Block, inputs: list[Any]) -> list[Any]:
        self.ctx.values.update(
            zip((value.debugName() for value in body.inputs()), inputs, strict=True)
        )
        return self.walker.walk(body)


@contextlib.contextmanager
def _without_logs() -> Iterator[None]:
    """Silence torch's log: it prints a page for each operator that cannot infer a shape, which is a
    normal case here.
    """
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


class _NoNetwork:
    """A placeholder for the network. Nothing is added to it."""

    num_layers = 0
