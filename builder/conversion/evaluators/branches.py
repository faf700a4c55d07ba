"""prim::If: a static condition is resolved here; otherwise an IIfConditional."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sympy
import torch

from builder.conversion import nested
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar, of_lengths
from builder.conversion.evaluators.creation import filled
from builder.conversion.facts import is_tensor
from builder.conversion.layers import copy_facts
from builder.conversion.lists import TensorList
from builder.conversion.registry import evaluator
from builder.conversion.scalars import unknown, vector
from builder.conversion.sizes import inputs_of, kind_of
from builder.conversion.values import UNSET, Operand, Scalar
from builder.conversion.walker import MISSING
from builder.engine import ITensor, tensorrt8
from builder.graph_types import Block, Node
from builder.reachable import reachable


@evaluator("prim::If")
def branch(ctx: ConversionContext, node: Node, condition: Operand) -> Any:
    """The values of the taken block for a static condition; else a conditional with both blocks."""
    if isinstance(condition, torch.Tensor):
        condition = bool(condition)
    blocks = list(node.blocks())
    if not nested.is_unknown(condition):
        return nested.one_or_all(ctx.walker.walk(blocks[0 if condition else 1]))
    costly = _costly(node) if _gives_numbers(node) else node.kind()
    if costly is None:
        return nested.one_or_all(_selected(ctx, node, condition, blocks))
    if not ctx.capabilities.takes("CONDITIONAL.SIZES", "INT32") and _chooses_a_size(
        ctx, node
    ):
        raise Unconvertible(
            tensorrt8.BRANCH_OF_SIZES.format(costly), tensorrt8.NEWER_OR_BOTH
        )
    return nested.one_or_all(_conditional(ctx, node, condition, blocks))


def _chooses_a_size(ctx: ConversionContext, node: Node) -> bool:
    """Whether a branch only selects numbers that depend on axis lengths."""
    outside = (
        ctx.values.get(name)
        for block in node.blocks()
        for name in nested.read_outside(block)
    )
    return _gives_numbers(node) and any(
        isinstance(value, DynamicScalar) and of_lengths(value) for value in outside
    )


CHEAP = frozenset(
    "prim::Constant prim::NumToTensor prim::min prim::max aten::Bool aten::Int aten::Float"
    " aten::item aten::size aten::lt aten::gt aten::le aten::ge aten::eq aten::ne aten::add"
    " aten::sub aten::mul aten::abs aten::neg aten::sum aten::max aten::min aten::mean aten::all"
    " aten::any aten::logical_and aten::logical_or aten::logical_not aten::__not__".split()
)
"""Operators that may be computed speculatively: they are cheap and have no invalid inputs.
"""
DIVISIONS = frozenset(("aten::floordiv", "aten::remainder"))
"""Operators that are also cheap if the divisor is a nonzero number."""


def _gives_numbers(node: Node) -> bool:
    """Whether a branch only selects numbers (`a and b`, `n if n > 3 else 3`)."""
    return {str(value.type()) for value in node.outputs()} <= {"int", "bool"}


def _costly(node: Node) -> str | None:
    """The kind of a node in a branch that must not run unless its block is taken, or None."""
    nodes = [inner for block in node.blocks() for inner in block.nodes()]
    for inner in nodes:
        kind = str(inner.kind())
        if kind == "prim::If":
            if not _gives_numbers(inner):
                return kind
            costly = _costly(inner)
            if costly is not None:
                return costly
        elif kind in DIVISIONS:
            if not inner.inputsAt(1).toIValue():
                return kind
        elif kind not in CHEAP:
            return kind
    return None


def _selected(
    ctx: ConversionContext, node: Node, condition: Operand, blocks: list[Block]
) -> list[Any]:
    """Compute both blocks and select one of each pair of numbers. Unlike the output of a
    conditional, TensorRT accepts the result as a size.
    """
    results = [ctx.walker.walk(block) for block in blocks]
    if any(value is MISSING for values in results for value in values):
        return [MISSING] * node.outputsSize()
    return [_choice(ctx, condition, *pair) for pair in zip(*results, strict=True)]


def _choice(ctx: ConversionContext, condition: Operand, yes: Scalar, no: Scalar) -> Any:
    if (
        not nested.is_unknown(yes)
        and not nested.is_unknown(no)
        and _is_same_value(yes, no)
    ):
        return yes
    flag = ctx.reshape(nested.as_flag(ctx, condition), [1])
    dtype = torch.promote_types(ctx.dtype(yes), ctx.dtype(no))
    a = vector(ctx, yes, dtype)
    b = vector(ctx, no, dtype)
    if dtype == torch.bool:  # which not every TensorRT version can select
        chosen = ctx.elementwise(
            "OR",
            ctx.elementwise("AND", flag, a),
            ctx.elementwise("AND", ctx.unary("NOT", flag), b),
        )
    else:
        chosen = ctx.net.add_select(flag, a, b).get_output(0)
    return DynamicScalar(ctx, chosen, unknown(chosen), dtype)


def _conditional(
    ctx: ConversionContext, node: Node, condition: Operand, blocks: list[Block]
) -> list[Any]:
    """Both blocks as layers of one IIfConditional. Outside values enter through its input
    layers.
    """
    ctx.add_control_flow("CONDITIONAL")
    flag = nested.as_flag(ctx, condition)
    _check_unchained(ctx, flag)
    conditional = ctx.net.add_if_conditional()
    conditional.set_condition(flag)
    results = []
    outside = [name for block in blocks for name in nested.read_outside(block)]
    with _entering(ctx, outside, _gate(ctx, conditional)) as outside_of:
        for block in blocks:
            results.append(ctx.walker.walk(block))
    if any(value is MISSING for values in results for value in values):
        # The operators inside are already reported.
        return [MISSING] * node.outputsSize()
    merged = []
    for yes, no, value in zip(*results, node.outputs(), strict=True):
        described = nested.named(value.debugName(), "one of its values")
        merged.append(_merge(ctx, conditional, yes, no, described))
    return [outside_of(value) for value in merged]


def _check_unchained(ctx: ConversionContext, flag: ITensor) -> None:
    """Raise Unconvertible if a condition depends on the output of a conditional, and TensorRT
    computes such networks incorrectly.
    """
    if ctx.capabilities.takes("CONDITIONAL.CHAINED", "FLOAT"):
        return
    tensors = {flag.name: flag}

    def sources(name: str) -> list[str]:
        layer = ctx.producer(tensors[name])
        inputs = {tensor.name: tensor for tensor in inputs_of(layer)} if layer else {}
        tensors.update(inputs)
        return list(inputs)

    for name in reachable([flag.name], sources):
        layer = ctx.producer(tensors[name])
        if layer is not None and kind_of(layer) == "CONDITIONAL_OUTPUT":
            raise Unconvertible(tensorrt8.CHAINED_BRANCHES, tensorrt8.NEWER)


def _gate(ctx: ConversionContext, conditional: Any) -> Callable[[Any], Any]:
    def enter(tensor: ITensor) -> ITensor:
        return copy_facts(ctx, tensor, conditional.add_input(tensor).get_output(0))

    return enter


def _merge(
    ctx: ConversionContext, conditional: Any, yes: Any, no: Any, described: str
) -> Any:
    """The output layer of two values of one dtype and rank; equal static values stay static."""
    if (
        not nested.is_unknown(yes)
        and not nested.is_unknown(no)
        and _is_same_value(yes, no)
    ):
        return yes
    if yes is UNSET or no is UNSET:
        other = no if yes is UNSET else yes
        if _is_static(other):
            return other
        unset = _for_unset(ctx, conditional, other)
        yes, no = (unset, no) if yes is UNSET else (yes, unset)
    if any(
        value is None or isinstance(value, nested.UNRETURNABLE) for value in (yes, no)
    ):
        raise _unmerged(yes, no, described)
    if all(isinstance(v, DynamicScalar | bool | int | float) for v in (yes, no)):
        return _merge_numbers(ctx, conditional, yes, no)
    yes, no = ctx.tensor(yes), ctx.tensor(no)
    if ctx.dtype(yes) != ctx.dtype(no):
        yes, no = nested.widened(ctx, yes, no)
    nested.require_same_dtype_and_rank(
        ctx, yes, no, f"the blocks of the branch give {described}"
    )
    return _output(ctx, conditional, yes, no)


def _for_unset(ctx: ConversionContext, conditional: Any, other: Any) -> Any:
    """The value of the block that leaves an output unset; UNSET if there is none."""
    unset = zeros_for_unset(ctx, other)
    return unset if unset is UNSET else _gate(ctx, conditional)(unset)


def _output(
    ctx: ConversionContext, conditional: Any, yes: ITensor, no: ITensor
) -> ITensor:
    """The output layer of two tensors of one dtype and rank."""
    layer = conditional.add_output(_owned(ctx, yes), _owned(ctx, no))
    output: ITensor = layer.get_output(0)
    ctx.remember_dtype(output, ctx.dtype(yes))
    for axis in range(ctx.rank(yes)):
        if output.shape[axis] < 0 and ctx.expr(yes, axis) == ctx.expr(no, axis):
            ctx.facts(output).exprs[axis] = ctx.expr(yes, axis)
    return output


def _is_static(value: object) -> bool:
    """Whether a value is known without running the network."""
    if isinstance(value, list):
        return all(map(_is_static, value))
    return value is None or isinstance(value, torch.Tensor | str | int | float)


def _unmerged(yes: object, no: object, described: str) -> Unconvertible:
    """The refusal of an output that a conditional cannot return."""
    if any(value is UNSET for value in (yes, no)) and any(map(is_tensor, (yes, no))):
        return Unconvertible(
            f"one block of the branch leaves {described} unset, and its shape is known only in"
            " the other block",
            "set it in both blocks",
        )
    if (yes is None) != (no is None):
        return Unconvertible(
            f"the branch decides at run time whether {described} is None",
            "use a tensor instead of None, such as a mask of ones",
        )
    return Unconvertible(
        f"the branch decides what {described} is at run time, and it is not a tensor or a"
        " number"
    )


def zeros_for_unset(ctx: ConversionContext, other: Any) -> Any:
    """Zeros of the dtype and shape of `other`, a tensor inside a block, for a path that leaves it
    unset. UNSET for other values, and if the shape is known in that block only.
    """
    if not is_tensor(other):
        return UNSET
    sizes = [ctx.size_of_input(other, axis) for axis in range(ctx.rank(other))]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return UNSET
    return ctx.tensor(filled(ctx, known, 0, ctx.dtype(other)))


def _owned(ctx: ConversionContext, tensor: ITensor) -> ITensor:
    """An identity layer in the block. A constant may be shared with the other block, and TensorRT
    8.6 leaves an output unwritten if a block only passes an outside tensor on.
    """
    return copy_facts(ctx, tensor, ctx.net.add_identity(tensor).get_output(0))


def _is_same_value(a: Operand, b: Operand) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    return type(a) is type(b) and bool(a == b)


def _merge_numbers(
    ctx: ConversionContext, conditional: Any, yes: Scalar, no: Scalar
) -> DynamicScalar:
    dtype = torch.promote_types(ctx.dtype(yes), ctx.dtype(no))
    pair = (_owned(ctx, vector(ctx, value, dtype)) for value in (yes, no))
    output = conditional.add_output(*pair).get_output(0)
    return DynamicScalar(ctx, output, sympy.Symbol(output.name), dtype)


@contextmanager
def _entering(
    ctx: ConversionContext, names: Sequence[str], enter: Callable[[Any], Any]
) -> Iterator[Callable[[Any], Any]]:
    """Inside the block, every tensor among the named values is replaced by `enter(tensor)`,
    including lists and sizes. The context manager returns the opposite function: a list that both
    blocks pass on has the tensors outside again.
    """
    outside = nested.values_outside(ctx, names)
    entered: dict[str, Any] = {}
    origins: dict[str, Any] = {}

    def inside(tensor: ITensor) -> Any:
        if tensor.name not in entered:
            entered[tensor.name] = enter(tensor)
            origins[entered[tensor.name].name] = tensor
        return entered[tensor.name]

    def outside_of(tensor: ITensor) -> Any:
        return origins.get(tensor.name, tensor)

    ctx.values.update(
        {name: _changed(ctx, value, inside) for name, value in outside.items()}
    )
    try:
        yield lambda value: _changed(ctx, value, outside_of)
    finally:
        ctx.values.update(outside)


def _changed(ctx: ConversionContext, value: Any, change: Callable[[Any], Any]) -> Any:
    """The value with `change(tensor)` for every tensor, also those of lists and sizes."""
    if isinstance(value, list):
        return [_changed(ctx, element, change) for element in value]
    if isinstance(value, TensorList):
        parts = (value.front, value.rows, value.count)
        return TensorList(*(_changed(ctx, part, change) for part in parts))
    if isinstance(value, DynamicScalar):
        tensor = _changed(ctx, value.tensor, change)
        return DynamicScalar(ctx, tensor, value.expr, value.dtype)
    return change(value) if is_tensor(value) else value
