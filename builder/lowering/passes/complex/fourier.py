"""Rules for the Fourier transforms fft, ifft, rfft and irfft, which transform one axis after the
other by `builder.decompositions.fourier`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from builder.decompositions import fft, fft_of_real, irfft, rfft
from builder.graph_types import Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes.complex.rules import Pair, Rule, lifted

Axis = tuple[Any, Any]
"""The length of a transform, None for that of the axis, and the axis: values or numbers."""


Transform = Callable[[Emit, Any, list[Axis], str], Any]


def _of_one(
    emit: Emit, node: Node, x: Any, *settings: Value, transform: Transform
) -> Any:
    n, dim, norm = settings
    return transform(emit, x, [(n, dim)], ir.constant(norm) or "backward")


def _of_several(
    emit: Emit, node: Node, x: Any, *settings: Value, transform: Transform
) -> Any:
    """None if the axes are not in the graph: by default, all are transformed."""
    sizes, dims, norm = settings
    axes = ir.int_list(dims) or []
    lengths = [None] * len(axes) if ir.is_none(sizes) else ir.list_items(sizes)
    if not axes or lengths is None or len(lengths) != len(axes):
        return None
    known = [None if _is_default(length) else length for length in lengths]
    pairs = list(zip(known, axes, strict=True))
    return transform(emit, x, pairs, ir.constant(norm) or "backward")


def _is_default(length: Any) -> bool:
    number = ir.constant(length) if isinstance(length, ir.C.Value) else length
    return bool(number == -1)


def _transformed(
    emit: Emit, x: Pair, axes: list[Axis], norm: str, *, inverse: bool
) -> Pair:
    for n, dim in axes:
        x = _parts(emit, fft, *x, n, dim, norm, inverse)
    return x


def _whole(emit: Emit, x: Any, axes: list[Axis], norm: str, *, inverse: bool) -> Pair:
    """fft and ifft"""
    if isinstance(x, Pair):
        return _transformed(emit, x, axes, norm, inverse=inverse)
    pair = _parts(emit, fft_of_real, x, *axes[-1], norm, inverse)
    return _transformed(emit, pair, axes[:-1], norm, inverse=inverse)


def _real(emit: Emit, x: Any, axes: list[Axis], norm: str) -> Pair | None:
    """rfft"""
    if isinstance(x, Pair):
        return None
    pair = _parts(emit, rfft, x, *axes[-1], norm)
    return _transformed(emit, pair, axes[:-1], norm, inverse=False)


def _inverse_real(emit: Emit, x: Any, axes: list[Axis], norm: str) -> Value:
    """irfft"""
    pair = _transformed(emit, lifted(emit, x), axes[:-1], norm, inverse=True)
    return emit.call(irfft, *_values(emit, *pair, *axes[-1], norm))


def _parts(emit: Emit, function: Callable[..., Any], *arguments: Any) -> Pair:
    parts = emit.call(function, *_values(emit, *arguments))
    types = [ir.TENSOR] * 2
    unpacked = ir.insert(
        emit.graph, "prim::TupleUnpack", [parts], emit.at, types, emit.origin
    )
    return Pair(*ir.outputs(unpacked))


def _values(emit: Emit, *arguments: Any) -> list[Value]:
    return [
        argument if isinstance(argument, ir.C.Value) else emit.constant(argument)
        for argument in arguments
    ]


FOURIER: dict[str, Rule] = {
    f"aten::fft_{name}{axes}": partial(
        _of_several if axes else _of_one, transform=transform
    )
    for name, transform in (
        ("fft", partial(_whole, inverse=False)),
        ("ifft", partial(_whole, inverse=True)),
        ("rfft", _real),
        ("irfft", _inverse_real),
    )
    for axes in ("", "2", "n")
}
"""The rules by kind."""
