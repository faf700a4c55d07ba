"""prim::If and prim::Loop: static ones are resolved here; the others become IIfConditional and ILoop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sympy
import torch

from builder.conversion.block import MISSING
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar, expression
from builder.conversion.packing import UNPACK, Packed, is_packed
from builder.conversion.registry import evaluator
from builder.engine import dialect
from builder.engine.flavour import trt

ENDLESS = 2**31 - 1
"""Trip counts of `while` loops are the greatest int64, those of TensorRT an int32 that is never reached."""


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "is_network_input")


def _unknown(value: Any) -> bool:
    return isinstance(value, DynamicScalar) or _is_tensor(value)


def _one(values: list[Any]) -> Any:
    """A node of one output has the value itself; one of several has a list."""
    return values[0] if len(values) == 1 else values


# Branches


@evaluator("prim::If")
def branch(ctx: ConversionContext, node: Any, condition: Any) -> Any:
    """The values of the arm that a static condition takes; else a conditional with both arms."""
    if isinstance(condition, torch.Tensor):
        condition = bool(condition)
    arms = list(node.blocks())
    if not _unknown(condition):
        return _one(ctx.blocks.convert(arms[0 if condition else 1]))
    if _decides_a_loop(node) and not dialect.takes("CONDITIONAL.IN_LOOP", "BOOL"):
        return _one(_selected(ctx, condition, arms))
    return _one(_conditional(ctx, node, condition, arms))


CHEAP = frozenset(
    "prim::Constant prim::NumToTensor aten::Bool aten::Int aten::Float aten::item aten::lt aten::gt aten::le aten::ge "
    "aten::eq aten::ne aten::add aten::sub aten::mul aten::abs aten::neg aten::sum aten::max aten::min aten::mean "
    "aten::all aten::any aten::logical_and aten::logical_or aten::logical_not aten::__not__ aten::size".split()
)
"""What may be computed although nobody asks for it: it reads nothing out of bounds, and costs little."""


def _decides_a_loop(node: Any) -> bool:
    """Whether a branch of one bool (`a and b`) stands in a loop."""
    if [str(v.type()) for v in node.outputs()] != ["bool"]:
        return False
    around = node.owningBlock().owningNode()
    while around is not None and around.kind() != "prim::Loop":
        around = around.owningBlock().owningNode()
    return around is not None


def _selected(ctx: ConversionContext, condition: Any, arms: list[Any]) -> list[Any]:
    """Both arms of `a and b`, computed, and one bool chosen."""
    costly = next((n.kind() for arm in arms for n in arm.nodes() if n.kind() not in CHEAP), None)
    if costly:
        raise Unconvertible(f"a branch in a loop decides a condition: 8.6 cannot build it, nor is {costly} free to run")
    ((yes,), (no,)) = (ctx.blocks.convert(arm) for arm in arms)
    if yes is MISSING or no is MISSING:
        return [MISSING]
    flag, a, b = (_flag(ctx, v) if _unknown(v) else ctx.constant(torch.tensor(bool(v))) for v in (condition, yes, no))
    both, otherwise = ctx.elementwise("AND", flag, a), ctx.elementwise("AND", ctx.unary("NOT", flag), b)
    return [ctx.scalar(ctx.elementwise("OR", both, otherwise))]


def _conditional(ctx: ConversionContext, node: Any, condition: Any, arms: list[Any]) -> list[Any]:
    """Both arms as layers of one IIfConditional; what they read from outside comes through its input layers."""
    conditional = ctx.net.add_if_conditional()
    conditional.set_condition(_flag(ctx, condition))
    results = []
    with _entering(ctx, [v for arm in arms for v in _free(arm)], _gate(ctx, conditional)):
        for arm in arms:
            results.append(ctx.blocks.convert(arm))
    if any(value is MISSING for values in results for value in values):
        return [MISSING] * node.outputsSize()  # the operators inside are reported already
    merged = zip(*results, node.outputs(), strict=True)
    return [_merge(ctx, conditional, yes, no, value.debugName()) for yes, no, value in merged]


def _flag(ctx: ConversionContext, condition: Any) -> Any:
    """The condition as a 0-d bool tensor."""
    tensor = condition.tensor if isinstance(condition, DynamicScalar) else ctx.tensor(condition)
    return ctx.reshape(ctx.cast(tensor, torch.bool), [])


def _gate(ctx: ConversionContext, conditional: Any) -> Callable[[Any], Any]:
    def enter(tensor: Any) -> Any:
        return _like(ctx, tensor, conditional.add_input(tensor).get_output(0))

    return enter


def _like(ctx: ConversionContext, source: Any, target: Any) -> Any:
    """`target` carries what is known of `source`: dtype and sizes."""
    ctx.remember_dtype(target, ctx.dtype(source))
    return ctx.copy_sizes(source, target)


def _merge(ctx: ConversionContext, conditional: Any, yes: Any, no: Any, name: str) -> Any:
    """The output layer of two values of one dtype and rank; equal static values stay static."""
    if not _unknown(yes) and not _unknown(no) and _same(yes, no):
        return yes
    if any(isinstance(v, list | dict | str | Packed) or v is None for v in (yes, no)):
        raise Unconvertible(f"the branch decides what %{name} is at run time, and it is not a tensor or a number")
    numbers = [isinstance(v, DynamicScalar | bool | int | float) for v in (yes, no)]
    if all(numbers):
        return _merge_numbers(ctx, conditional, yes, no)
    yes, no = ctx.tensor(yes), ctx.tensor(no)
    _agree(ctx, yes, no, f"the arms of the branch give %{name}")
    output = conditional.add_output(_owned(ctx, yes), _owned(ctx, no)).get_output(0)
    ctx.remember_dtype(output, ctx.dtype(yes))
    for axis in range(ctx.rank(yes)):
        if output.shape[axis] < 0 and ctx.expr(yes, axis) == ctx.expr(no, axis):
            ctx.facts(output).exprs[axis] = ctx.expr(yes, axis)
    return output


def _owned(ctx: ConversionContext, tensor: Any) -> Any:
    """A layer of the arm's own for what it only passes on: a constant may be shared with the other arm."""
    shared = ctx.is_constant(tensor)
    return _like(ctx, tensor, ctx.net.add_identity(tensor).get_output(0)) if shared else tensor


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    return type(a) is type(b) and bool(a == b)


def _merge_numbers(ctx: ConversionContext, conditional: Any, yes: Any, no: Any) -> DynamicScalar:
    from builder.conversion.scalars import vector

    dtype = torch.promote_types(ctx.dtype(yes), ctx.dtype(no))
    pair = (_owned(ctx, vector(ctx, v, dtype)) for v in (yes, no))
    output = conditional.add_output(*pair).get_output(0)
    return DynamicScalar(output, sympy.Symbol(output.name), dtype)


def _agree(ctx: ConversionContext, a: Any, b: Any, what: str) -> None:
    """Refuses tensors of different dtype or rank."""
    if ctx.dtype(a) != ctx.dtype(b):
        raise Unconvertible(f"{what} of two dtypes, {ctx.dtype(a)} and {ctx.dtype(b)}", "cast both to one dtype")
    if ctx.rank(a) != ctx.rank(b):
        raise Unconvertible(f"{what} of two ranks, {ctx.rank(a)} and {ctx.rank(b)}")


def _free(block: Any) -> list[str]:
    """The names of the values that a block reads from outside, inner blocks included."""
    own = {v.debugName() for v in block.inputs()}
    names: dict[str, None] = {}
    for node in block.nodes():
        read = [v.debugName() for v in node.inputs()] + [n for inner in node.blocks() for n in _free(inner)]
        names.update(dict.fromkeys(n for n in read if n not in own))
        own |= {v.debugName() for v in node.outputs()}
    names.update(dict.fromkeys(v.debugName() for v in block.outputs() if v.debugName() not in own))
    return list(names)


@contextmanager
def _entering(ctx: ConversionContext, names: Sequence[str], enter: Callable[[Any], Any]) -> Iterator[None]:
    """Within, every tensor among the named values is replaced by `enter(tensor)`, lists and sizes included."""
    outside = _outside(ctx, names)
    entered: dict[str, Any] = {}

    def inside(value: Any) -> Any:
        if isinstance(value, list):
            return [inside(v) for v in value]
        if isinstance(value, DynamicScalar):
            return DynamicScalar(inside(value.tensor), value.expr, value.dtype)
        if not _is_tensor(value):
            return value
        if value.name not in entered:
            entered[value.name] = enter(value)
        return entered[value.name]

    ctx.values.update({name: inside(value) for name, value in outside.items()})
    try:
        yield
    finally:
        ctx.values.update(outside)


def _outside(ctx: ConversionContext, names: Sequence[str]) -> dict[str, Any]:
    """The named values, none of them packed: the layers that first ask for its mask would stand inside, for all."""
    values = {name: ctx.values[name] for name in names}
    if any(map(is_packed, values.values())):
        raise Unconvertible("a branch or loop that the data decide reads a packed sequence", UNPACK)
    return values


# Loops


@evaluator("prim::Loop")
def loop(ctx: ConversionContext, node: Any, trips: Any, condition: Any, *carried: Any) -> Any:
    """The loop written out for a static trip count and condition; else an ILoop."""
    body = next(iter(node.blocks()))
    if isinstance(condition, torch.Tensor):
        condition = bool(condition)
    if _unknown(trips) or _unknown(condition) or (condition and _long(ctx, trips, body)):
        return _one(_looped(ctx, node, body, trips, condition, list(carried)))
    values, trip = list(carried), 0
    while condition and trip < trips:
        condition, *values = _iteration(ctx, body, [trip, *values])
        if condition is MISSING:
            return _one([MISSING] * len(values))
        if _unknown(condition):
            raise Unconvertible("the loop's condition becomes unknown after some trips")
        trip += 1
    return _one(values)


def _long(ctx: ConversionContext, trips: int, body: Any) -> bool:
    """Whether the loop would be written out more often than the unroll limit, or ends where the engine decides."""
    goes_on = next(iter(body.outputs()))
    constant = goes_on.node().kind() == "prim::Constant"
    return trips > ctx.unroll_limit if constant else _depends_on_tensors(goes_on)


def _depends_on_tensors(value: Any) -> bool:
    """Whether a tensor's element takes part in the computation of a value within its block."""
    node = value.node()
    if node.kind() in ("aten::Bool", "aten::item", "aten::Int", "aten::Float") and node.inputsSize():
        return str(node.inputsAt(0).type()) == "Tensor"
    return any(_depends_on_tensors(v) for v in node.inputs() if v.node().kind() not in ("prim::Param", "prim::Loop"))


def _iteration(ctx: ConversionContext, body: Any, inputs: list[Any]) -> list[Any]:
    """The outputs of the body (condition first) for the trip number and the carried values."""
    ctx.values.update(zip((v.debugName() for v in body.inputs()), inputs, strict=True))
    values: list[Any] = ctx.blocks.convert(body)
    return values


def _looped(ctx: ConversionContext, node: Any, body: Any, trips: Any, condition: Any, carried: list[Any]) -> list[Any]:
    """An ILoop; the trip number and each carried value that changes are recurrences."""
    _outside(ctx, _free(body))
    layer = ctx.net.add_loop()
    _limit(ctx, layer, trips)
    inputs, outputs = list(body.inputs()), list(body.outputs())
    state = [_Carried(ctx, layer, v, inputs[i + 1], outputs[i + 1]) for i, v in enumerate(carried)]
    counter = _counter(ctx, layer) if inputs[0].uses() else 0
    going = _while(ctx, layer, condition, outputs[0])
    goes_on, *following = _iteration(ctx, body, [counter, *(s.inside for s in state)])
    if any(value is MISSING for value in (goes_on, *following)):
        return [MISSING] * node.outputsSize()
    if going is not None:
        going.set_input(1, _flag(ctx, goes_on))
    for item, value in zip(state, following, strict=True):
        item.follow(value)
    return [item.last() for item in state]


def _limit(ctx: ConversionContext, layer: Any, trips: Any) -> None:
    """The greatest number of trips, unless there is none: a `while` counts up to the greatest integer."""
    if isinstance(trips, DynamicScalar):
        layer.add_trip_limit(ctx.reshape(trips.tensor, []), trt.TripLimit.COUNT)
    elif trips < ENDLESS:
        layer.add_trip_limit(ctx.constant(torch.tensor(trips, dtype=torch.int32)), trt.TripLimit.COUNT)


def _while(ctx: ConversionContext, layer: Any, condition: Any, goes_on: Any) -> Any:
    """The recurrence of the condition; None for a loop that only counts."""
    always = goes_on.node().kind() == "prim::Constant" and bool(goes_on.toIValue())
    if always and condition is True:
        return None
    flag = ctx.constant(torch.tensor(condition)) if isinstance(condition, bool) else _flag(ctx, condition)
    recurrence = layer.add_recurrence(flag)
    layer.add_trip_limit(recurrence.get_output(0), trt.TripLimit.WHILE)
    return recurrence


def _counter(ctx: ConversionContext, layer: Any) -> DynamicScalar:
    """The trip number, counted by a recurrence."""
    zero, one = (ctx.constant(torch.tensor([n])) for n in (0, 1))
    recurrence = layer.add_recurrence(zero)
    number = recurrence.get_output(0)
    recurrence.set_input(1, ctx.elementwise("SUM", number, one))
    return DynamicScalar(number, sympy.Symbol(number.name, integer=True, nonnegative=True))


class _Carried:
    """One value that a loop hands from trip to trip; one that the body passes on unchanged needs no recurrence."""

    def __init__(self, ctx: ConversionContext, layer: Any, value: Any, parameter: Any, output: Any) -> None:
        self.ctx, self.layer, self.value = ctx, layer, value
        self.name = parameter.debugName()
        self.recurrence = None
        self.inside = value
        if output.debugName() == self.name:
            return
        if isinstance(value, list | dict | str | Packed) or value is None:
            raise Unconvertible(f"the loop carries %{self.name}, which is not a tensor or a number, through its trips")
        self.start = self._tensor(value)
        self.recurrence = layer.add_recurrence(self.start)
        self.inside = self._value(_like(ctx, self.start, self.recurrence.get_output(0)))

    def _is_number(self) -> bool:
        return isinstance(self.value, DynamicScalar | bool | int | float)

    def _tensor(self, value: Any) -> Any:
        from builder.conversion.scalars import vector

        return vector(self.ctx, value, self.ctx.dtype(self.value)) if self._is_number() else self.ctx.tensor(value)

    def _value(self, tensor: Any) -> Any:
        if not self._is_number():
            return tensor
        return DynamicScalar(tensor, sympy.Symbol(tensor.name, integer=True), self.ctx.dtype(self.value))

    def follow(self, value: Any) -> None:
        """Hand `value` on to the next trip. Refuses one of another dtype or shape: engines keep one for all trips."""
        if self.recurrence is None:
            return
        following = self._tensor(value)
        _agree(self.ctx, self.start, following, f"the loop carries %{self.name}")
        for axis in range(self.ctx.rank(self.start)):
            before, after = (self.ctx.expr(t, axis) for t in (self.start, following))
            if before.is_Integer and after.is_Integer and expression(before) != expression(after):
                raise Unconvertible(
                    f"axis {axis} of %{self.name} is {before} before a trip of the loop and {after} after"
                )
        self.recurrence.set_input(1, following)

    def last(self) -> Any:
        """The value after the last trip."""
        if self.recurrence is None:
            return self.value
        output = self.layer.add_loop_output(self.recurrence.get_output(0), trt.LoopOutput.LAST_VALUE, 0).get_output(0)
        return self._value(_like(self.ctx, self.start, output))
