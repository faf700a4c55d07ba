"""Helpers for several families of converters: gathers, promoted arithmetic, comparisons,
selections.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import torch

from builder.conversion.context import ConversionContext
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.facts import is_tensor
from builder.conversion.scalars import COMPARISON
from builder.conversion.values import Operand, Tensor
from builder.engine import ITensor, trt

NAN_UNDEFINED = "NaN may become another number"
"""The note of operators whose layers do not pass NaN on, or may not. docs/operators.md explains
it.
"""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def copy_facts(ctx: ConversionContext, source: ITensor, target: ITensor) -> ITensor:
    """Copy the facts of `source` to `target`: dtype and sizes."""
    ctx.remember_dtype(target, ctx.dtype(source))
    return ctx.copy_sizes(source, target)


def gathered(ctx: ConversionContext, x: ITensor, index: Tensor, axis: int) -> ITensor:
    """The values of x at `index` (of any rank, none negative) along an axis: one IGatherLayer."""
    index = as_index(ctx, index)
    layer = ctx.net.add_gather(x, index, axis)
    result = layer.get_output(0)
    ctx.remember_dtype(result, ctx.dtype(x))
    sizes = ctx.exprs(x)
    sizes[axis : axis + 1] = ctx.exprs(index)
    return ctx.set_sizes(result, sizes)


def as_index(ctx: ConversionContext, index: Tensor) -> ITensor:
    """An index tensor as an ITensor of int32 or int64. Masks (uint8 and bool) are not allowed."""
    if isinstance(index, torch.Tensor):
        if index.dtype not in (torch.int32, torch.int64):
            index = index.to(torch.int64)
        return ctx.constant(index)
    if ctx.dtype(index) in (torch.int32, torch.int64):
        return index
    return ctx.cast(index, torch.int64)


def floating(ctx: ConversionContext, x: ITensor) -> ITensor:
    """The tensor, with integers and bools cast to float32 as PyTorch promotes them for real
    functions.
    """
    if ctx.dtype(x).is_floating_point:
        return x
    return ctx.cast(x, torch.float32)


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which arithmetic on this dtype is computed: bools as integers."""
    if dtype == torch.bool:
        return torch.int32
    return dtype


HALVES = (torch.float16, torch.bfloat16)


def accumulated(ctx: ConversionContext, x: ITensor) -> ITensor:
    """`floating`, and half precision cast to float32: PyTorch computes statistics of half tensors
    in float32, and the square of 256 is beyond float16's range.
    """
    x = floating(ctx, x)
    if ctx.dtype(x) in HALVES:
        return ctx.cast(x, torch.float32)
    return x


def half_as_float32(
    function: Callable[Concatenate[ConversionContext, ITensor, Parameters], Result],
) -> Callable[Concatenate[ConversionContext, ITensor, Parameters], Result]:
    """Decorates a function of a context, tensors and other arguments: it gets the tensors
    `accumulated`, and its results (a tensor or a tuple) are cast to the dtype of the first tensor,
    float32 for integers.
    """

    @functools.wraps(function)
    def computed(
        ctx: ConversionContext,
        x: ITensor,
        /,
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Result:
        x = floating(ctx, x)
        dtype = ctx.dtype(x)
        wide: Any = [accumulated(ctx, arg) if is_tensor(arg) else arg for arg in args]
        result: Any = function(ctx, accumulated(ctx, x), *wide, **kwargs)
        if isinstance(result, tuple):
            return cast(Result, tuple(ctx.cast(tensor, dtype) for tensor in result))
        return cast(Result, ctx.cast(result, dtype))

    return computed


def arithmetic_dtype(
    operation: str, dtype: torch.dtype, values: Sequence[Operand]
) -> torch.dtype:
    """The dtype in which an operation on `values`, of promoted dtype `dtype`, is computed.

    It is float32 for products and quotients of half precision by a number that `dtype` rounds to
    infinity or to 0. PyTorch computes these with the number itself: 0 * -1e9 of float16 is 0, and
    0 * -inf would be NaN. Its sums on the CPU round the number first.
    """
    if dtype not in HALVES or operation not in ("PROD", "DIV"):
        return computed_in(dtype)
    limits = torch.finfo(dtype)
    for value in values:
        number = _number(value)
        if number is None:
            continue
        size = abs(number)
        if size > limits.max or 0 < size < limits.tiny:
            return torch.float32
    return dtype


def _number(value: Operand) -> float | None:
    """The finite number that an operand is; None for other operands."""
    if isinstance(value, torch.Tensor) and not value.dim() and not value.is_complex():
        value = value.item()
    if isinstance(value, int | float) and abs(value) < float("inf"):
        return float(value)
    return None


def combine(ctx: ConversionContext, operation: str, *values: Operand) -> ITensor:
    """An ElementWiseOperation on promoted, broadcast operands; bool is computed as integers and
    cast back.
    """
    dtype = ctx.promoted(*values)
    computed = arithmetic_dtype(operation, dtype, values)
    result = ctx.elementwise(operation, *ctx.operands(*values, dtype=computed))
    return to_result_dtype(ctx, result, computed, dtype)


def to_result_dtype(
    ctx: ConversionContext, result: ITensor, computed: torch.dtype, dtype: torch.dtype
) -> ITensor:
    """Convert the result to torch's dtype: small integers wrap around, bool is cast back from
    integers.
    """
    if computed != dtype:
        return ctx.cast(result, dtype)
    return ctx.wrapped(result, dtype)


def comparison(
    ctx: ConversionContext, name: str, x: Operand, other: Operand
) -> ITensor:
    """A bool tensor; `name` is that of torch's function: eq, ne, lt, le, gt or ge.

    >= is `not <`, except for NaN, which compares False with everything except with !=.
    """
    _, operation, negate = COMPARISON[name]
    dtype = ctx.compared_in(x, other)
    a, b = ctx.operands(x, other, dtype=dtype)
    if not negate or operation == "EQUAL" or not dtype.is_floating_point:
        result = ctx.elementwise(operation, a, b)
        return ctx.unary("NOT", result) if negate else result
    strict = {"LESS": "GREATER", "GREATER": "LESS"}[operation]
    return ctx.elementwise(
        "OR", ctx.elementwise(strict, a, b), ctx.elementwise("EQUAL", a, b)
    )


def less(ctx: ConversionContext, a: Operand, b: Operand) -> ITensor:
    """a < b"""
    return comparison(ctx, "lt", a, b)


def equal(ctx: ConversionContext, a: Operand, b: Operand) -> ITensor:
    """a == b"""
    return comparison(ctx, "eq", a, b)


def choose(
    ctx: ConversionContext,
    condition: Tensor,
    a: Operand,
    b: Operand,
    dtype: torch.dtype | None = None,
) -> ITensor:
    """a where the bool condition is true, else b; in their promoted dtype, or `dtype`."""
    dtype = dtype or ctx.promoted(a, b)
    rank = max(ctx.rank(value) for value in (condition, a, b))
    a, b = ctx.operands(a, b, dtype=dtype)
    condition, a, b = (
        ctx.at_rank(value, rank)
        for value in (ctx.cast(ctx.tensor(condition), torch.bool), a, b)
    )
    result = ctx.net.add_select(condition, a, b).get_output(0)
    ctx.remember_dtype(result, dtype)
    return result


def activate(
    ctx: ConversionContext,
    x: ITensor,
    activation: str,
    alpha: float | None = None,
    beta: float | None = None,
) -> ITensor:
    """One IActivationLayer on a floating tensor; `activation` is an ActivationType's name."""
    layer = ctx.net.add_activation(x, getattr(trt.ActivationType, activation))
    if alpha is not None:
        layer.alpha = alpha
    if beta is not None:
        layer.beta = beta
    return ctx.copy_sizes(x, layer.get_output(0))


def is_nan(ctx: ConversionContext, x: ITensor) -> ITensor:
    """Whether each element is NaN. Without a layer for it: x != x."""
    if ctx.capabilities.has_operation("UNARY", "ISNAN"):
        return ctx.unary("ISNAN", x)
    return ctx.unary("NOT", ctx.elementwise("EQUAL", x, x))


def extremum(ctx: ConversionContext, operation: str, *values: Operand) -> ITensor:
    """The larger (MAX) or smaller (MIN) of two promoted operands, or NaN if one of them is NaN.

    The layer alone returns the other operand then (NVIDIA/TensorRT, issue 4758).
    """
    result = combine(ctx, operation, *values)
    if not ctx.promoted(*values).is_floating_point:
        return result
    for value in values:
        result = with_nan_of(ctx, value, result)
    return result


def with_nan_of(ctx: ConversionContext, x: Operand, result: ITensor) -> ITensor:
    """The result, or x where x is NaN. Not every layer of TensorRT passes NaN on."""
    if isinstance(x, int | float):
        x = torch.tensor(x)
    if isinstance(x, DynamicScalar) or not ctx.dtype(x).is_floating_point:
        return result
    if isinstance(x, torch.Tensor) and not x.isnan().any():
        return result
    x = ctx.tensor(x)
    return choose(ctx, is_nan(ctx, x), x, result, ctx.dtype(result))


def reduce(
    ctx: ConversionContext,
    operation: str,
    x: ITensor,
    axes: Sequence[int],
    *,
    keepdim: bool = False,
) -> ITensor:
    """One IReduceLayer over these (non-negative) axes; a 0-d tensor, or no axes, changes nothing.

    The result for an empty tensor is a constant, because not every TensorRT version reduces one.
    """
    if not axes:
        return x
    shape = tuple(x.shape)
    if 0 in shape and -1 not in shape:
        return ctx.constant(
            _reduction_of_empty(operation, shape, ctx.dtype(x), axes, keepdim)
        )
    mask = sum(1 << axis for axis in axes)
    output = ctx.net.add_reduce(
        x, getattr(trt.ReduceOperation, operation), mask, keepdim
    ).get_output(0)
    ctx.remember_dtype(output, ctx.dtype(x))
    return ctx.set_sizes(output, reduced_sizes(ctx, x, axes, keepdim))


def reduced_sizes(
    ctx: ConversionContext, x: Tensor, axes: Sequence[int], keepdim: bool
) -> list[Any]:
    """The sizes of x after a reduction of these axes."""
    sizes: list[Any] = []
    for axis in range(ctx.rank(x)):
        if axis not in axes:
            sizes.append(ctx.expr(x, axis))
        elif keepdim:
            sizes.append(1)
    return sizes


def _reduction_of_empty(
    operation: str,
    shape: Sequence[int],
    dtype: torch.dtype,
    axes: Sequence[int],
    keepdim: bool,
) -> torch.Tensor:
    """The reduction of an empty tensor: the operation's neutral element in the resulting shape."""
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    neutral = {
        "SUM": 0,
        "PROD": 1,
        "AVG": float("nan"),
        "MAX": limits.min,
        "MIN": limits.max,
    }[operation]
    result_shape = []
    for axis, size in enumerate(shape):
        if axis not in axes:
            result_shape.append(size)
        elif keepdim:
            result_shape.append(1)
    return torch.full(result_shape, neutral, dtype=dtype)


def expm1(ctx: ConversionContext, x: ITensor) -> ITensor:
    """exp(x) - 1; near 0, where the difference cancels, 2t / (1 - t) with t = tanh(x / 2)."""
    t = activate(ctx, combine(ctx, "PROD", x, 0.5), "TANH")
    near = combine(
        ctx,
        "DIV",
        combine(ctx, "PROD", t, 2.0),
        combine(ctx, "SUB", ctx.like_scalar(t, 1.0), t),
    )
    far = combine(ctx, "SUB", ctx.unary("EXP", x), 1.0)
    return choose(ctx, less(ctx, ctx.unary("ABS", x), 0.5), near, far)


def log1p(ctx: ConversionContext, x: ITensor) -> ITensor:
    """log(1 + x); near 0, where 1 + x rounds, 2 atanh(x / (2 + x))."""
    near = ctx.unary("ATANH", combine(ctx, "DIV", x, combine(ctx, "SUM", x, 2.0)))
    far = ctx.unary("LOG", combine(ctx, "SUM", x, 1.0))
    return choose(
        ctx, less(ctx, ctx.unary("ABS", x), 0.5), combine(ctx, "PROD", near, 2.0), far
    )


def truncated(ctx: ConversionContext, x: ITensor) -> ITensor:
    """A floating tensor without its fraction: sign(x) floor(|x|)."""
    return ctx.elementwise(
        "PROD", ctx.unary("SIGN", x), ctx.unary("FLOOR", ctx.unary("ABS", x))
    )


def matmul_along(
    ctx: ConversionContext, matrix: Tensor, x: ITensor, axis: int
) -> ITensor:
    """The matrix product over one axis of x: result[..., o, ...] = sum_i matrix[o, i] x[..., i,
    ...].
    """
    rank = ctx.rank(x)
    none = trt.MatrixOperation.NONE
    transpose = trt.MatrixOperation.TRANSPOSE
    if axis == rank - 1:
        layer = ctx.net.add_matrix_multiply(
            x, none, ctx.at_rank(matrix, rank), transpose
        )
        y = layer.get_output(0)
        if not ctx.rank(y):
            return ctx.set_sizes(y, [])
        return ctx.set_sizes(y, [*ctx.exprs(x)[:-1], ctx.expr(matrix, 0)])
    if axis == rank - 2:
        layer = ctx.net.add_matrix_multiply(ctx.at_rank(matrix, rank), none, x, none)
        exprs = ctx.exprs(x)
        exprs[-2] = ctx.expr(matrix, 0)
        return ctx.set_sizes(layer.get_output(0), exprs)
    sizes = ctx.sizes(x)
    inner = math.prod(sizes[axis + 1 :])
    flat = ctx.reshape(x, [*sizes[: axis + 1], inner])
    y = matmul_along(ctx, matrix, flat, axis)
    sizes[axis] = ctx.size(matrix, 0)
    return ctx.reshape(y, sizes)
