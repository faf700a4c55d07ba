"""The rule for each operator on pairs, for the pass that splits complex tensors.

A rule receives (emit, node, the node's arguments with complex ones as pairs). It returns a pair, a
list of pairs for several outputs, a value for a real result, or None if it does not apply.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from builder.dtypes import code_of
from builder.graph_types import Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit

PART_DTYPES = {
    code_of(whole): code_of(whole.to_real())
    for whole in (torch.complex32, torch.complex64, torch.complex128)
}
"""The numbers of the complex dtypes in a graph, and those of their parts."""


class Pair(NamedTuple):
    """The real and the imaginary part: two tensors of one shape, two lists of such tensors, or two
    numbers.
    """

    re: Any
    im: Any


def _is_number(argument: Pair | Value) -> bool:
    part = argument.re if isinstance(argument, Pair) else argument
    return bool(
        part.type().kind() in ("IntType", "FloatType", "BoolType", "NumberType")
    )


def lifted(emit: Emit, argument: Pair | Value) -> Pair:
    """A real tensor as a complex pair."""
    if isinstance(argument, Pair):
        return argument
    return Pair(argument, emit.op("aten::zeros_like", argument, *[None] * 5))


def _for_each_part(emit: Emit, node: Node, *arguments: Pair | Value) -> Pair | None:
    """Rule for operators that act on both parts separately: they move, select or add elements."""
    if isinstance(arguments[0], Pair):
        return _both(emit, node, *arguments)
    return None


def _both(emit: Emit, node: Node, *arguments: Pair | Value) -> Pair:
    return Pair(*(_repeated_on_part(emit, node, arguments, part) for part in (0, 1)))


def _repeated_on_part(
    emit: Emit, node: Node, arguments: tuple[Pair | Value, ...], part: int
) -> Value:
    values = [
        argument[part] if isinstance(argument, Pair) else argument
        for argument in arguments
    ]
    result_type = node.output().type()
    if result_type.kind() == "TensorType":
        result_type = ir.TENSOR
    return emit.op(node.kind(), *values, type=result_type)


def _summed(emit: Emit, node: Node, *arguments: Pair | Value) -> Pair | None:
    """A sum that keeps its dtype."""
    if _keeps(arguments[-1]):
        return _for_each_part(emit, node, *arguments)
    return None


def _keeps(dtype: Pair | Value) -> bool:
    """Whether a dtype is absent, or that of the parts of a complex tensor."""
    return isinstance(dtype, Pair) or ir.is_none(dtype)


def _zeros(
    emit: Emit, node: Node, like: Pair, dtype: Value, *options: Value
) -> Pair | None:
    if _keeps(dtype):
        return _for_each_part(emit, node, like, dtype, *options)
    return None


def _query(emit: Emit, node: Node, *arguments: Pair | Value) -> Value:
    """A query of the shape only."""
    return _repeated_on_part(emit, node, arguments, 0)


def _list(emit: Emit, node: Node, *items: Pair) -> Pair | None:
    if any(map(_is_number, items)):
        return None
    pairs = [lifted(emit, item) for item in items]
    return Pair(
        emit.list([pair.re for pair in pairs], ir.TENSOR),
        emit.list([pair.im for pair in pairs], ir.TENSOR),
    )


def _unpacked(emit: Emit, node: Node, items: Pair) -> list[Pair]:
    types = [ir.TENSOR] * node.outputsSize()
    parts = [
        ir.insert(emit.graph, node.kind(), [part], emit.at, types, emit.origin)
        for part in items
    ]
    return [Pair(*pair) for pair in zip(*map(ir.outputs, parts), strict=True)]


def _where(emit: Emit, node: Node, condition: Value, *choices: Pair) -> Pair | None:
    if len(choices) != 2 or any(map(_is_number, choices)):
        return None
    return _both(emit, node, condition, *(lifted(emit, choice) for choice in choices))


def _added(emit: Emit, node: Node, a: Any, b: Any, alpha: Pair | Value) -> Pair | None:
    """add, sub and rsub: a + alpha b. A number is a real part."""
    if isinstance(alpha, Pair) or _is_number(a):
        return None
    if _is_number(b) and not isinstance(b, Pair):
        b = Pair(b, emit.constant(0))
    if not _is_number(a):
        a = lifted(emit, a)
    if not _is_number(b):
        b = lifted(emit, b)
    re = emit.op(node.kind(), a.re, b.re, alpha)
    im = emit.op(node.kind(), a.im, b.im, alpha)
    return Pair(re, im)


def _filled(
    emit: Emit, node: Node, a: Pair, where: Value, number: Pair | Value
) -> Pair | None:
    """constant_pad_nd and masked_fill: a number is the real part of the fill value."""
    if not (isinstance(a, Pair) and _is_number(number)):
        return None
    fill = number if isinstance(number, Pair) else Pair(number, emit.constant(0))
    re = emit.op(node.kind(), a.re, where, fill.re)
    im = emit.op(node.kind(), a.im, where, fill.im)
    return Pair(re, im)


def _product(emit: Emit, node: Node, a: Any, b: Any) -> Pair:
    """mul and the products of matrices: (a + bi)(c + di) = ac - bd + (ad + bc)i."""
    times = partial(emit.op, node.kind())
    if _is_number(a):
        a, b = b, a
    if not isinstance(a, Pair):
        return Pair(times(a, b.re), times(a, b.im))
    if not isinstance(b, Pair):
        return Pair(times(a.re, b), times(a.im, b))
    re = emit.op("aten::sub", times(a.re, b.re), times(a.im, b.im), 1)
    im = emit.op("aten::add", times(a.re, b.im), times(a.im, b.re), 1)
    return Pair(re, im)


def _quotient(
    emit: Emit, node: Node, a: Any, b: Pair | Value, *rounding: Any
) -> Pair | None:
    """a / b = a conj(b) / |b|^2."""
    if rounding or (isinstance(b, Pair) and _is_number(b)):
        return None
    divided = partial(emit.op, "aten::div")
    if not isinstance(b, Pair):
        return Pair(divided(a.re, b), divided(a.im, b))
    times = partial(_times, emit)
    a = lifted(emit, a)
    norm = emit.op("aten::add", times(b.re, b.re), times(b.im, b.im), 1)
    re = emit.op("aten::add", times(a.re, b.re), times(a.im, b.im), 1)
    im = emit.op("aten::sub", times(a.im, b.re), times(a.re, b.im), 1)
    return Pair(divided(re, norm), divided(im, norm))


def _reciprocal(emit: Emit, node: Node, a: Pair) -> Pair:
    """1 / a = conj(a) / |a|^2."""
    norm = emit.op("aten::add", _times(emit, a.re, a.re), _times(emit, a.im, a.im), 1)
    minus = emit.op("aten::neg", a.im)
    return Pair(emit.op("aten::div", a.re, norm), emit.op("aten::div", minus, norm))


def _times(emit: Emit, a: Value, b: Value) -> Value:
    return emit.op("aten::mul", a, b)


def _squared(
    emit: Emit, node: Node, a: Pair, exponent: Pair | Value | None = None
) -> Pair | None:
    """square, and pow by two."""
    if not isinstance(a, Pair) or isinstance(exponent, Pair):
        return None
    if exponent is not None and ir.constant(exponent) != 2:
        return None
    times = partial(_times, emit)
    re = emit.op("aten::sub", times(a.re, a.re), times(a.im, a.im), 1)
    im = emit.op("aten::mul", times(a.re, a.im), 2)
    return Pair(re, im)


def _exponential(emit: Emit, node: Node, a: Pair) -> Pair:
    return _polar(emit, node, emit.op("aten::exp", a.re), a.im)


def _polar(emit: Emit, node: Node, length: Value, angle: Value) -> Pair:
    re = _times(emit, length, emit.op("aten::cos", angle))
    return Pair(re, _times(emit, length, emit.op("aten::sin", angle)))


def _conjugate(emit: Emit, node: Node, a: Pair) -> Pair:
    return Pair(a.re, emit.op("aten::neg", a.im))


def _same(emit: Emit, node: Node, a: Pair) -> Pair:
    return a


def _of_last_axis(emit: Emit, node: Node, x: Value) -> Pair:
    """view_as_complex: the last axis has two elements."""
    return Pair(*(emit.op("aten::select", x, -1, at) for at in (0, 1)))


def _spectrum(emit: Emit, node: Node, *arguments: Value) -> Pair | None:
    """stft: with return_complex=False the parts are a last axis, which conversion supports. torch
    deprecates this in eager code, but has no other operator with real results.
    """
    if (
        len(arguments) != _STFT
        or ir.constant(arguments[-2]) is not True
        or isinstance(arguments[0], Pair)
    ):
        return None
    x, *settings, _, aligned = arguments
    return _of_last_axis(emit, node, emit.op(node.kind(), x, *settings, False, aligned))


_STFT = 9  # arguments of the overload without padding, which torch.stft calls


def _of_parts(emit: Emit, node: Node, re: Value, im: Value) -> Pair:
    parts = emit.op(
        "aten::broadcast_tensors",
        emit.list([re, im], ir.TENSOR),
        type=ir.C.ListType(ir.TENSOR),
    )
    return Pair(
        *ir.outputs(
            ir.insert(
                emit.graph,
                "prim::ListUnpack",
                [parts],
                emit.at,
                [ir.TENSOR] * 2,
                emit.origin,
            )
        )
    )


def _on_last_axis(emit: Emit, node: Node, a: Pair) -> Value:
    return emit.op("aten::stack", emit.list(list(a), ir.TENSOR), -1)


def _cast(emit: Emit, node: Node, x: Any, dtype: Pair | Value, *options: Value) -> Any:
    """Cast to a complex dtype: cast both parts to its real dtype. Cast of a complex tensor to a
    real dtype: the real part.
    """
    if isinstance(dtype, Pair):
        x = _as_tensors(emit, lifted(emit, x))
        return Pair(
            emit.op("aten::to", x.re, dtype.re, *options),
            emit.op("aten::to", x.im, dtype.im, *options),
        )
    number = ir.constant(dtype)
    if isinstance(x, Pair):
        x = _as_tensors(emit, x)
    if number in PART_DTYPES:
        x = lifted(emit, x)
        return Pair(
            emit.op("aten::to", x.re, PART_DTYPES[number], *options),
            emit.op("aten::to", x.im, PART_DTYPES[number], *options),
        )
    if number is not None:
        return emit.op("aten::to", x.re, dtype, *options)
    return None


def _as_tensors(emit: Emit, x: Pair) -> Pair:
    """The parts of a constant number as tensors of rank 0."""
    numbers = map(ir.constant, x)
    return Pair(
        *(
            emit.constant(torch.tensor(number)) if isinstance(number, float) else part
            for part, number in zip(x, numbers, strict=True)
        )
    )


Rule = Callable[..., Any]
_MOVES = (
    "reshape flatten unflatten unsqueeze squeeze transpose permute t mT movedim expand expand_as"
    " broadcast_to slice select narrow index index_select gather diagonal tril triu roll flip rot90"
    " repeat chunk split split_with_sizes tensor_split unbind __getitem__ cat stack neg"
)
RULES: dict[str, Rule] = {
    **{f"aten::{name}": _for_each_part for name in _MOVES.split()},
    **{f"aten::{name}": _summed for name in ("sum", "mean", "cumsum")},
    **{f"aten::{name}": _query for name in ("size", "dim", "numel", "len")},
    **{
        f"aten::{name}": _product
        for name in ("mul", "matmul", "bmm", "mm", "mv", "dot")
    },
    **{f"aten::{name}": _added for name in ("add", "sub", "rsub")},
    **{f"aten::{name}": _filled for name in ("constant_pad_nd", "masked_fill")},
    **{f"aten::{name}": _conjugate for name in ("conj", "_conj", "conj_physical")},
    **{f"aten::{name}": _same for name in ("resolve_conj", "resolve_neg")},
    **{f"aten::{name}": _squared for name in ("square", "pow")},
    "prim::ListConstruct": _list,
    "prim::ListUnpack": _unpacked,
    "aten::zeros_like": _zeros,
    "aten::where": _where,
    "aten::div": _quotient,
    "aten::reciprocal": _reciprocal,
    "aten::exp": _exponential,
    "aten::to": _cast,
    "prim::dtype": _for_each_part,  # also a pair: from a cast to it
    "aten::view_as_complex": _of_last_axis,
    "aten::complex": _of_parts,
    "aten::polar": _polar,
    "aten::stft": _spectrum,
    "aten::view_as_real": _on_last_axis,
    "aten::real": lambda emit, node, a: a.re,
    "aten::imag": lambda emit, node, a: a.im,
    "aten::abs": lambda emit, node, a: emit.op("aten::hypot", a.re, a.im),
    "aten::angle": lambda emit, node, a: emit.op("aten::atan2", a.im, a.re),
    "aten::is_complex": lambda emit, node, a: emit.constant(True),
}
