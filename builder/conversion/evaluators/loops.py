"""prim::Loop: a static loop is unrolled; others become an ILoop, which collects list elements of
its iterations.
"""

from __future__ import annotations

from typing import Any

import sympy
import torch

from builder.conversion import nested
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.arranging import flipped
from builder.conversion.converters.sequences import scalar_tensor, value_of_each_step
from builder.conversion.dynamic import DynamicScalar, Size, expression
from builder.conversion.evaluators.branches import zeros_for_unset
from builder.conversion.facts import is_any_tensor, is_tensor
from builder.conversion.layers import computed_in, copy_facts
from builder.conversion.lists import (
    RecentElements,
    TensorList,
    as_rows,
    cat,
    recent_reads,
)
from builder.conversion.registry import evaluator
from builder.conversion.sizes import inputs_of
from builder.conversion.values import UNSET, Scalar, Tensor
from builder.conversion.walker import MISSING
from builder.engine import ITensor, tensorrt8, trt
from builder.graph_types import Block, Node, Value
from builder.lowering import ir
from builder.reachable import reachable

ENDLESS = 2**31 - 1
"""The trip count of a `while` loop: int64's maximum in TorchScript, and an int32 that is never
reached in TensorRT.
"""


@evaluator("prim::Loop")
def loop(
    ctx: ConversionContext, node: Node, trip_count: Any, condition: Any, *carried: Any
) -> Any:
    """Unroll a loop with a static trip count and condition; else create an ILoop."""
    body = ir.first_block(node)
    if isinstance(condition, torch.Tensor):
        condition = bool(condition)
    if (
        nested.is_unknown(trip_count)
        or nested.is_unknown(condition)
        or (condition and _exceeds_unroll_limit(ctx, trip_count, body))
    ):
        return nested.one_or_all(
            _looped(ctx, node, body, trip_count, condition, list(carried))
        )
    return nested.one_or_all(
        _unrolled(ctx, node, body, trip_count, condition, list(carried))
    )


def _unrolled(
    ctx: ConversionContext,
    node: Node,
    body: Block,
    trip_count: int,
    condition: Any,
    carried: list[Any],
) -> list[Any]:
    """The carried values after all iterations, one after another. If the condition becomes unknown,
    an ILoop has the remaining ones.
    """
    iteration = 0
    while iteration < trip_count and condition:
        condition, *carried = _iteration(ctx, body, [iteration, *carried])
        if condition is MISSING:
            return [MISSING] * len(carried)
        iteration += 1
        if iteration < trip_count and nested.is_unknown(condition):
            if any(value is MISSING for value in carried):
                return [MISSING] * len(carried)
            return _rest(ctx, node, body, trip_count, iteration, condition, carried)
    return carried


def _rest(
    ctx: ConversionContext,
    node: Node,
    body: Block,
    trip_count: int,
    iteration: int,
    condition: Scalar,
    carried: list[Any],
) -> list[Any]:
    """An ILoop of the iterations after the unrolled ones. It counts from 0 again."""
    if next(iter(body.inputs())).uses():
        raise Unconvertible(
            "the loop's condition becomes unknown after some iterations"
        )
    if trip_count < ENDLESS:
        trip_count -= iteration
    return _looped(ctx, node, body, trip_count, condition, carried)


def _exceeds_unroll_limit(ctx: ConversionContext, trip_count: Any, body: Block) -> bool:
    """Whether the trip count exceeds the unroll limit, or is known only at run time."""
    continues = next(iter(body.outputs()))
    constant = continues.node().kind() == "prim::Constant"
    if constant:
        return bool(trip_count > ctx.unroll_limit)
    return _depends_on_tensors(continues)


def _depends_on_tensors(value: Value) -> bool:
    """Whether a value depends on an element of a tensor within its block."""

    def operands(value: Value) -> list[Value]:
        node = value.node()
        if node.kind() in ("prim::Param", "prim::Loop"):
            return []
        ends = ir.branch_ends(value) if node.kind() == "prim::If" else []  # `a or b`
        return [*node.inputs(), *ends]

    return any(_reads_element(item.node()) for item in reachable([value], operands))


def _reads_element(node: Node) -> bool:
    return (
        node.kind() in ("aten::Bool", "aten::item", "aten::Int", "aten::Float")
        and node.inputsSize() > 0
        and str(node.inputsAt(0).type()) == "Tensor"
    )


def _iteration(ctx: ConversionContext, body: Block, inputs: list[Any]) -> list[Any]:
    """The outputs of the body (condition first) for the iteration number and the carried values."""
    ctx.values.update(
        zip((value.debugName() for value in body.inputs()), inputs, strict=True)
    )
    values: list[Any] = ctx.walker.walk(body)
    return values


def _iteration_in_engine(
    ctx: ConversionContext, body: Block, inputs: list[Any]
) -> list[Any]:
    """The outputs of `_iteration` inside an ILoop."""
    ctx.loops += 1
    try:
        return _iteration(ctx, body, inputs)
    finally:
        ctx.loops -= 1


def _looped(
    ctx: ConversionContext,
    node: Node,
    body: Block,
    trip_count: Size,
    condition: Scalar,
    carried: list[Any],
) -> list[Any]:
    """An ILoop; the iteration number and each carried value that changes are recurrences."""
    nested.values_outside(ctx, nested.read_outside(body))
    ctx.add_control_flow("LOOP")
    first = ctx.net.num_layers
    layer = ctx.net.add_loop()
    _limit(ctx, layer, trip_count)
    inputs, outputs = list(body.inputs()), list(body.outputs())
    count = trip_count if _only_counts(condition, outputs[0]) else None
    state: list[Any] = [
        _carried(ctx, layer, value, parameter, output, count)
        for value, parameter, output in zip(
            carried, inputs[1:], outputs[1:], strict=True
        )
    ]
    counter = _counter(ctx, layer, trip_count) if inputs[0].uses() else 0
    while_condition = _while(ctx, layer, condition, outputs[0])
    for item in state:
        if isinstance(item, _GrowingRead):
            item.count_from(counter)
    inside = [counter, *(item.inside for item in state)]
    continues, *following = _iteration_in_engine(ctx, body, inside)
    if any(value is MISSING for value in (continues, *following)):
        return [MISSING] * node.outputsSize()
    if while_condition is not None:
        while_condition.set_input(1, nested.as_flag(ctx, continues))
    for item, value in zip(state, following, strict=True):
        item.follow(value)
    _check_carried(ctx, state, first)
    return [item.last() for item in state]


def _check_carried(ctx: ConversionContext, state: list[Any], first: int) -> None:
    """Raise Unconvertible if TensorRT computes the loop incorrectly: it exchanges carried values,
    or none of its layers, which begin at `first`, reads one of them.
    """
    state = [part for item in state for part in getattr(item, "recent", [item])]
    if _swaps(state) and not ctx.capabilities.takes("RECURRENCE.SWAPPED", "FLOAT"):
        raise Unconvertible(tensorrt8.SWAP_IN_LOOP, tensorrt8.NEWER_OR_FIXED)
    if ctx.capabilities.takes("RECURRENCE.UNREAD", "FLOAT"):
        return
    layers = map(ctx.net.get_layer, range(first, ctx.net.num_layers))
    read = {tensor.name for layer in layers for tensor in inputs_of(layer)}
    carried = (getattr(item, "recurrence", None) for item in state)
    if any(layer and layer.get_output(0).name not in read for layer in carried):
        raise Unconvertible(tensorrt8.UNREAD_IN_LOOP, tensorrt8.NEWER_OR_FIXED)


def _swaps(state: list[Any]) -> bool:
    """Whether a carried value takes the value of another one, which takes that of another one in
    the same iteration: `a, b = b, a`.
    """
    following = {
        item.recurrence.get_output(0).name: item.recurrence.get_input(1).name
        for item in state
        if isinstance(item, _Carried) and item.recurrence is not None
    }
    passed_on = {name for name, source in following.items() if source in following}
    return any(following[name] in passed_on - {name} for name in passed_on)


def _limit(ctx: ConversionContext, layer: Any, trip_count: Size) -> None:
    """The maximum trip count, or None: a `while` loop has the largest integer as its trip count."""
    if isinstance(trip_count, DynamicScalar) or trip_count < ENDLESS:
        layer.add_trip_limit(scalar_tensor(ctx, trip_count), trt.TripLimit.COUNT)


def _only_counts(condition: Scalar, continues: Value) -> bool:
    """Whether only the trip count ends the loop."""
    return (
        condition is True
        and continues.node().kind() == "prim::Constant"
        and bool(continues.toIValue())
    )


def _while(
    ctx: ConversionContext, layer: Any, condition: Scalar, continues: Value
) -> Any:
    """The recurrence of the condition; None for a loop that only counts."""
    if _only_counts(condition, continues):
        return None
    if isinstance(condition, bool):
        flag = ctx.constant(torch.tensor(condition))
    else:
        flag = nested.as_flag(ctx, condition)
    recurrence = layer.add_recurrence(flag)
    layer.add_trip_limit(recurrence.get_output(0), trt.TripLimit.WHILE)
    return recurrence


def _counter(ctx: ConversionContext, layer: Any, trip_count: Size) -> DynamicScalar:
    """The iteration number, counted by a recurrence from 0 to less than the trip count."""
    zero = ctx.constant(torch.tensor([0]))
    step = ctx.constant(torch.tensor([1]))
    recurrence = layer.add_recurrence(zero)
    number = recurrence.get_output(0)
    recurrence.set_input(1, ctx.elementwise("SUM", number, step))
    symbol = sympy.Symbol(number.name, integer=True, nonnegative=True)
    ctx.varying.add(symbol)
    ctx.counters[symbol] = expression(trip_count)
    return DynamicScalar(ctx, number, symbol)


def _carried(
    ctx: ConversionContext,
    layer: Any,
    value: Any,
    parameter: Value,
    output: Value,
    count: Size | None,
) -> Any:
    """The recurrence of a loop-carried value. `count` is the trip count, if nothing else ends the
    loop.
    """
    is_parameter = []
    if output.node().kind() == "aten::add":
        is_parameter = [
            part.debugName() == parameter.debugName() for part in output.node().inputs()
        ]
    if count is not None and isinstance(value, list) and any(is_parameter):
        if len(parameter.uses()) == len(output.uses()) == 1:
            return _Growing(ctx, layer, value, count, at_the_end=is_parameter[0])
        if is_parameter[0]:
            reads = recent_reads(parameter, output, len(value))
            if reads:
                return _GrowingRead(ctx, layer, value, count, parameter, output, reads)
    if count is not None and (axis := _joined_axis(parameter, output)) is not None:
        return _Lengthening(ctx, layer, value, count, axis)
    if value is UNSET and output.debugName() != parameter.debugName():
        return _Returned(ctx, layer, parameter.debugName())
    return _Carried(ctx, layer, value, parameter, output)


def _joined_axis(parameter: Value, output: Value) -> int | None:
    """The axis along which each iteration appends to a tensor without other users, or None."""
    parts = None
    if output.node().kind() == "aten::cat":
        parts = output.node().inputsAt(0).node()
    if (
        parts is None
        or parts.kind() != "prim::ListConstruct"
        or parts.inputsAt(0).debugName() != parameter.debugName()
    ):
        return None
    are_used_once = all(
        len(value.uses()) == 1 for value in (parameter, parts.output(), output)
    )
    axis = output.node().inputsAt(1)
    if are_used_once and axis.node().kind() == "prim::Constant":
        return int(axis.toIValue())
    return None


class _Growing:
    """A list to which each iteration adds a tensor, `at_the_end` or at the start, and which is not
    read inside the loop.
    """

    def __init__(
        self,
        ctx: ConversionContext,
        layer: Any,
        value: list[Tensor],
        count: Size,
        at_the_end: bool = True,
    ) -> None:
        self.ctx = ctx
        self.layer = layer
        self.front = value
        self.count = count
        self.at_the_end = at_the_end
        self.inside: Any = []

    def follow(self, value: Any) -> None:
        """Record the element that this iteration adds."""
        if len(value) != 1 or not (
            is_tensor(value[0]) or isinstance(value[0], torch.Tensor)
        ):
            raise Unconvertible(
                "a loop with a dynamic trip count must append exactly one tensor per iteration"
            )
        tensor = self.ctx.tensor(value[0])
        if self.ctx.varies(*self.ctx.sizes(tensor)):
            raise Unconvertible(
                "the tensors that the loop appends to a list change their shape between iterations"
            )
        self.dtype = self.ctx.dtype(tensor)
        # TensorRT's loop output does not support bools
        self.row = self.ctx.cast(tensor, computed_in(self.dtype))

    def last(self) -> Any:
        """The list after the loop. A list that grows at the start is reversed (RTX 1.7 cannot build
        a loop with LoopOutput.REVERSE as its only output).
        """
        trip_count = scalar_tensor(self.ctx, self.count)
        rows = value_of_each_step(
            self.ctx,
            self.layer,
            self.row,
            trt.LoopOutput.CONCATENATE,
            trip_count,
            self.count,
        )
        rows = self.ctx.cast(rows, self.dtype)
        if self.at_the_end:
            return TensorList(self.front, rows, self.count)
        rows = as_rows(self.ctx, flipped(self.ctx, rows, [0]), self.front)
        return TensorList([], rows, self.count + len(self.front))


class _GrowingRead(_Growing):
    """A list to which each iteration appends a tensor, and whose last `reads` elements it may read:
    each of these is a loop-carried value. The list has them before the loop.
    """

    def __init__(
        self,
        ctx: ConversionContext,
        layer: Any,
        value: list[Tensor],
        count: Size,
        parameter: Value,
        output: Value,
        reads: int,
    ) -> None:
        super().__init__(ctx, layer, value, count)
        if not all(map(is_any_tensor, value)):
            raise _uncarried(value, parameter.debugName())
        self.recent = [
            _Carried(ctx, layer, item, parameter, output) for item in value[-reads:]
        ]
        self.inside = RecentElements(item.inside for item in self.recent)
        self.inside.front = value

    def count_from(self, counter: Any) -> None:
        """Use the iteration number to find elements by their index."""
        if isinstance(counter, DynamicScalar):
            self.inside.length = len(self.front) + counter.expr

    def follow(self, value: Any) -> None:
        """Record the element that this iteration appends, and move the others by one."""
        super().follow(value[len(self.recent) :])
        for item, following in zip(self.recent, value[1:], strict=True):
            item.follow(following)


class _Lengthening(_Growing):
    """A tensor to which each iteration appends by torch.cat: a list of the appended tensors, and
    one cat after the loop.
    """

    def __init__(
        self, ctx: ConversionContext, layer: Any, value: Tensor, count: Size, axis: int
    ) -> None:
        super().__init__(ctx, layer, [value], count)
        self.axis = axis
        # cat ignores an empty tensor of one axis
        self.inside = torch.empty(0, dtype=ctx.dtype(value))

    def follow(self, value: object) -> None:
        """Record the tensor that this iteration appends."""
        super().follow([value])

    def last(self) -> ITensor:
        """The tensor after the loop."""
        return cat(self.ctx, super().last(), self.axis)


class _Carried:
    """One loop-carried value. A value that the body returns unchanged needs no recurrence."""

    def __init__(
        self,
        ctx: ConversionContext,
        layer: Any,
        value: Any,
        parameter: Value,
        output: Value,
    ) -> None:
        self.ctx = ctx
        self.layer = layer
        self.value = value
        self.name = parameter.debugName()
        self.recurrence = None
        self.inside = value
        if output.debugName() == self.name:
            return
        if value is None or isinstance(value, nested.UNRETURNABLE):
            raise _uncarried(value, self.name)
        # its value after an iteration may have either dtype
        (self.start,) = nested.widened(ctx, self._tensor(value))
        self.recurrence = layer.add_recurrence(self.start)
        self.inside = self._value(
            copy_facts(ctx, self.start, self.recurrence.get_output(0))
        )
        if isinstance(self.inside, DynamicScalar):
            ctx.varying |= self.inside.expr.free_symbols

    def _is_number(self) -> bool:
        return isinstance(self.value, DynamicScalar | bool | int | float)

    def _tensor(self, value: Any) -> ITensor:
        from builder.conversion.scalars import vector

        if self._is_number():
            return vector(self.ctx, value, self.ctx.dtype(self.value))
        return self.ctx.tensor(value)

    def _value(self, tensor: ITensor) -> Any:
        if not self._is_number():
            return tensor
        return DynamicScalar(
            self.ctx,
            tensor,
            sympy.Symbol(tensor.name, integer=True),
            self.ctx.dtype(self.value),
        )

    def follow(self, value: object) -> None:
        """Set the value for the next iteration. Refuses another dtype or shape, because an engine
        has one for all iterations.
        """
        if self.recurrence is None:
            return
        (following,) = nested.widened(self.ctx, self._tensor(value))
        described = nested.named(self.name, "a value")
        nested.require_same_dtype_and_rank(
            self.ctx, self.start, following, f"the loop carries {described}"
        )
        axes = self.ctx.ranges().keys()
        for axis in range(self.ctx.rank(self.start)):
            before = expression(self.ctx.expr(self.start, axis))
            after = expression(self.ctx.expr(following, axis))
            if (
                sympy.expand(before - after) != 0
                and before.free_symbols | after.free_symbols <= axes
            ):
                raise Unconvertible(
                    f"axis {axis} of {nested.named(self.name, 'a loop-carried value')} is"
                    f" {before} before an iteration of the loop and {after} after"
                )
        self.recurrence.set_input(1, following)

    def last(self) -> Any:
        """The value after the last iteration."""
        if self.recurrence is None:
            return self.value
        output = self.layer.add_loop_output(
            self.recurrence.get_output(0), trt.LoopOutput.LAST_VALUE, 0
        ).get_output(0)
        return self._value(copy_facts(self.ctx, self.start, output))


class _Returned:
    """A value that is unset before the loop and that no iteration reads, such as that of `return`
    inside the loop. It starts as zeros.
    """

    def __init__(self, ctx: ConversionContext, layer: Any, name: str) -> None:
        self.ctx = ctx
        self.layer = layer
        self.name = name
        self.inside = UNSET
        self.start: Any = UNSET

    def follow(self, value: Any) -> None:
        """Set the value after this iteration. Refuses one whose shape is known in the loop only."""
        if value is UNSET:
            return
        if is_any_tensor(value):
            (value,) = nested.widened(self.ctx, self.ctx.tensor(value))
        self.start = zeros_for_unset(self.ctx, value)
        if self.start is UNSET:
            described = nested.named(self.name, "a value")
            raise Unconvertible(
                f"the loop sets {described} on some paths only, as `return` inside a loop does, and"
                " its shape is not known before the loop",
                "set it before the loop, and return it after the loop",
            )
        self.recurrence = self.layer.add_recurrence(self.start)
        self.recurrence.set_input(1, value)

    def last(self) -> Any:
        """The value after the last iteration."""
        if self.start is UNSET:
            return UNSET
        output = self.layer.add_loop_output(
            self.recurrence.get_output(0), trt.LoopOutput.LAST_VALUE, 0
        ).get_output(0)
        return copy_facts(self.ctx, self.start, output)


def _uncarried(value: object, name: str) -> Unconvertible:
    """The refusal of a value that an ILoop cannot carry."""
    if isinstance(value, list | TensorList):
        return Unconvertible(
            f"a loop with a dynamic trip count changes {nested.named(name, 'a list')}: it may"
            " only append one tensor per iteration, read the last elements of a list that has them"
            " before the loop, and not end early",
            "write the tensors to y[i] = ..., or use a loop with a fixed trip count",
        )
    described = nested.named(name, "a loop-carried value", "the loop-carried value ")
    if value is None:
        return Unconvertible(
            f"{described} is None before the loop", "set it to a tensor before the loop"
        )
    return Unconvertible(f"{described} is not a tensor or a number")
