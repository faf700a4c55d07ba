"""Operators that create tensors: static if their sizes are static, else one expanded constant or
one fill layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from builder.conversion import dtypes, scalars
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.converters.division import power_of_two
from builder.conversion.dynamic import DynamicScalar, Size, bounds
from builder.conversion.evaluators.prim import dtype_of_code
from builder.conversion.facts import is_tensor
from builder.conversion.registry import evaluator, for_each
from builder.conversion.values import Operand, Scalar, Tensor, item_of
from builder.engine import ITensor, tensorrt8, trt
from builder.graph_types import Node

VALUES = {"zeros": 0, "ones": 1, "empty": 0}
"""An uninitialized tensor (torch.empty) is filled with zeros, so that the network is
deterministic.
"""


def filled(
    ctx: ConversionContext, sizes: Sequence[Size], value: Scalar, dtype: torch.dtype
) -> Any:
    """A tensor filled with one value; static (an expanded scalar) if the sizes and the value
    are.
    """
    if dtype == torch.float64:
        dtype = torch.float32
    if isinstance(value, DynamicScalar):
        element = ctx.at_rank(ctx.tensor(value, dtype), len(sizes))
        return ctx.expand(element, sizes)
    if not any(isinstance(size, DynamicScalar) for size in sizes):
        return torch.tensor(value, dtype=dtype).expand([int(size) for size in sizes])  # type: ignore[arg-type]
    element = ctx.constant(torch.full((1,) * len(sizes), value, dtype=dtype))
    result = ctx.expand(element, sizes)
    if result is not element:
        ctx.facts(result).splat = element
    return result


def _default(value: Scalar) -> torch.dtype:
    """torch.full's default dtype: that of the number, with floats in the default dtype."""
    dtype: torch.dtype = (
        value.dtype
        if isinstance(value, DynamicScalar)
        else dtypes.TORCH_SCALARS[type(value)]
    )
    return torch.get_default_dtype() if dtype.is_floating_point else dtype


@for_each(*VALUES.items())
def _register_constant(name: str, value: int) -> None:
    key = f"aten::{name}.memory_format" if name == "empty" else f"aten::{name}"

    @evaluator(key)
    def of_sizes(
        ctx: ConversionContext, sizes: list[Size], dtype: int | None = None, *_: object
    ) -> Any:
        return filled(
            ctx, sizes, value, dtype_of_code(dtype) or torch.get_default_dtype()
        )

    @evaluator(f"aten::{name}_like")
    def like(
        ctx: ConversionContext, x: Tensor, dtype: int | None = None, *_: object
    ) -> Any:
        return filled(ctx, ctx.sizes(x), value, dtype_of_code(dtype) or ctx.dtype(x))

    @evaluator(f"aten::new_{name}")
    def new(
        ctx: ConversionContext,
        x: Tensor,
        sizes: list[Size],
        dtype: int | None = None,
        *_: bool | None,
    ) -> Any:
        return filled(ctx, sizes, value, dtype_of_code(dtype) or ctx.dtype(x))


@evaluator("aten::full")
def full(
    ctx: ConversionContext,
    sizes: list[Size],
    value: Scalar,
    dtype: int | None = None,
    *_: object,
) -> Any:
    """A tensor of one value."""
    value = _number(ctx, value)
    return filled(ctx, sizes, value, dtype_of_code(dtype) or _default(value))


@evaluator("aten::full_like", "aten::fill.Scalar", "aten::fill.Tensor")
def full_like(
    ctx: ConversionContext,
    x: Tensor,
    value: Operand,
    dtype: Any = None,
    *_: bool | None,
) -> Any:
    """A tensor of one value, of x's sizes and dtype."""
    return filled(
        ctx, ctx.sizes(x), _number(ctx, value), dtype_of_code(dtype) or ctx.dtype(x)
    )


@evaluator("aten::new_full")
def new_full(
    ctx: ConversionContext,
    x: Tensor,
    sizes: list[Size],
    value: Scalar,
    dtype: Any = None,
    *_: bool | None,
) -> Any:
    """A tensor of one value, of x's dtype."""
    return filled(ctx, sizes, _number(ctx, value), dtype_of_code(dtype) or ctx.dtype(x))


def _number(ctx: ConversionContext, value: Any) -> Any:
    """The number, also of a 0-d tensor."""
    return ctx.scalar(value) if is_tensor(value) else item_of(value)


@evaluator("aten::empty_strided", "aten::new_empty_strided")
def empty_strided(ctx: ConversionContext, node: Node, *values: Any) -> Any:
    """Zeros. Strides are ignored."""
    if node.kind() == "aten::empty_strided":
        sizes, _, dtype, *_ = values
        return filled(ctx, sizes, 0, dtype_of_code(dtype) or torch.get_default_dtype())
    x, sizes, _, dtype, *_ = values
    return filled(ctx, sizes, 0, dtype_of_code(dtype) or ctx.dtype(x))


def counted(
    ctx: ConversionContext, start: Scalar, step: Scalar, count: Size, dtype: torch.dtype
) -> ITensor:
    """start, start + step, ... of a dynamic count: one IFillLayer."""
    ctx.keep_steady(count)
    carrier = dtypes.carrier(dtype)
    computed = torch.float32
    if carrier in (torch.int32, torch.int64):
        computed = carrier
    if ctx.loops and not ctx.capabilities.takes(
        "FILL.IN_LOOP", dtypes.to_trt(computed).name
    ):
        raise Unconvertible(tensorrt8.WRITES_IN_LOOP, tensorrt8.NEWER_OR_FIXED)
    layer = ctx.net.add_fill((1,), trt.FillOperation.LINSPACE, dtypes.to_trt(computed))
    layer.set_input(0, ctx.shape_tensor([count]))
    layer.set_input(1, ctx.reshape(scalars.vector(ctx, start, computed), []))
    layer.set_input(2, scalars.vector(ctx, step, computed))
    result = ctx.set_sizes(layer.get_output(0), [count])
    return ctx.cast(result, dtype)


def range_length(ctx: ConversionContext, start: Size, end: Size, step: Any) -> Size:
    """ceil((end - start) / step), of integers as -floor((start - end) / step). torch.arange divides
    floats in float64, and the quotient is rounded before the ceiling is taken.
    """
    if any(ctx.dtype(number).is_floating_point for number in (start, end, step)):
        distance = end - start
        quotient = distance / step
        if (
            isinstance(quotient, DynamicScalar)
            and quotient.doubles is None
            and not (power_of_two(step) and _is_exact(ctx, start, end, distance))
        ):
            raise Unconvertible(
                "the length of an arange of floats: an engine divides in float32, PyTorch in"
                " float64"
            )
        if not isinstance(quotient, DynamicScalar):
            return math.ceil(float(quotient))
        return scalars.convert(ctx, scalars.unary(ctx, "CEIL", quotient), torch.int64)  # type: ignore[no-any-return]
    back = start - end
    count = -(back // step)
    return scalars.convert(ctx, count, torch.int64)  # type: ignore[no-any-return]


def _is_exact(
    ctx: ConversionContext, start: Scalar, end: Scalar, distance: Scalar
) -> bool:
    """Whether the engine has PyTorch's distance: `end` itself, or a difference of integers."""
    if start == 0:
        return _is_float32(ctx, end)
    return not ctx.dtype(distance).is_floating_point and _is_float32(ctx, distance)


def _is_float32(ctx: ConversionContext, number: Scalar) -> bool:
    """Whether PyTorch has exactly the engine's float32 number: that of a tensor, or an integer of
    at most 24 bits.
    """
    if not isinstance(number, DynamicScalar):
        return True
    if number.dtype.is_floating_point:
        return number.zero_dim
    span = bounds(number.expr, ctx.ranges())
    return span is not None and max(map(abs, span)) <= 2**24


def _arange(
    ctx: ConversionContext, start: Any, end: Any, step: Any, dtype: int | None
) -> Any:
    start = _number(ctx, start)
    if is_tensor(end) and ctx.dtype(end).is_floating_point:
        end = replace(ctx.scalar(end), zero_dim=True)
    end = _number(ctx, end)
    step = _number(ctx, step)
    target = dtype_of_code(dtype) or _arange_dtype(ctx, start, end, step)
    if not any(isinstance(value, DynamicScalar) for value in (start, end, step)):
        return torch.arange(start, end, step, dtype=target)
    if target == torch.int64:  # PyTorch then counts with integers
        start, end, step = (
            scalars.convert(ctx, number, torch.int64) for number in (start, end, step)
        )
    return counted(ctx, start, step, range_length(ctx, start, end, step), target)


def _arange_dtype(ctx: ConversionContext, *numbers: Scalar) -> torch.dtype:
    floating = any(ctx.dtype(number).is_floating_point for number in numbers)
    return torch.get_default_dtype() if floating else torch.int64


@evaluator("aten::arange")
def arange(
    ctx: ConversionContext, end: Scalar, dtype: int | None = None, *_: object
) -> Any:
    """0, 1, ... below end"""
    return _arange(ctx, 0, end, 1, dtype)


@evaluator("aten::arange.start")
def arange_start(
    ctx: ConversionContext, start: Scalar, end: Scalar, dtype: Any = None, *_: object
) -> Any:
    """start, start + 1, ..., less than end"""
    return _arange(ctx, start, end, 1, dtype)


@evaluator("aten::arange.start_step")
def arange_step(
    ctx: ConversionContext,
    start: Scalar,
    end: Scalar,
    step: Scalar,
    dtype: Any = None,
    *_: object,
) -> Any:
    """start, start + step, ..., before end"""
    return _arange(ctx, start, end, step, dtype)


@evaluator(
    "aten::linspace",
    "aten::linspace.Tensor_Tensor",
    "aten::linspace.Tensor_Scalar",
    "aten::linspace.Scalar_Tensor",
)
def linspace(
    ctx: ConversionContext,
    start: Any,
    end: Any,
    steps: Any,
    dtype: Any = None,
    *_: object,
) -> Any:
    """`steps` values from start to end, both included"""
    start = _number(ctx, start)
    end = _number(ctx, end)
    target = dtype_of_code(dtype) or torch.get_default_dtype()
    if not any(isinstance(value, DynamicScalar) for value in (start, end, steps)):
        return torch.linspace(start, end, steps, dtype=target)
    if not target.is_floating_point:
        raise Unconvertible("linspace of integers over a dynamic range")
    gaps = ctx.maximum(steps - 1, 1)
    step = (end - start) / gaps
    return counted(ctx, start, step, steps, target)


@evaluator("aten::eye", "aten::eye.m")
def eye(ctx: ConversionContext, node: Node, *values: Any) -> Any:
    """Ones where row and column are equal."""
    rows, *others = values
    if not node.schema().startswith("aten::eye.m("):
        others = [rows, *others]
    columns, dtype, *_ = others
    target = dtype_of_code(dtype) or torch.get_default_dtype()
    if not isinstance(rows, DynamicScalar) and not isinstance(columns, DynamicScalar):
        return torch.eye(rows, columns, dtype=target)
    down = ctx.unsqueeze(indices(ctx, rows), [1])
    along = ctx.unsqueeze(indices(ctx, columns), [0])
    on_diagonal = ctx.elementwise("EQUAL", down, along)
    return ctx.cast(ctx.set_sizes(on_diagonal, [rows, columns]), target)


def indices(ctx: ConversionContext, count: Size) -> ITensor:
    """0, 1, ..., count - 1 as an ITensor of the index dtype."""
    if isinstance(count, int):
        return ctx.constant(torch.arange(count, dtype=dtypes.index_dtype()))
    return counted(ctx, 0, 1, count, dtypes.index_dtype())


@evaluator("aten::tensor", "aten::as_tensor.list")
def tensor_of_list(
    ctx: ConversionContext, data: list[Any], dtype: Any = None, *_: bool | None
) -> Any:
    """The (nested) list as a tensor. Numbers that are known only at run time are concatenated."""
    flat, shape = _flattened(data)
    target = dtype_of_code(dtype) or _list_dtype(ctx, flat)
    if not any(isinstance(value, DynamicScalar) for value in flat):
        return torch.tensor(flat, dtype=target).reshape(shape)
    vectors = [scalars.vector(ctx, value, target) for value in flat]
    joined = ctx.concatenate(vectors, 0) if len(vectors) > 1 else vectors[0]
    result = ctx.cast(joined, target)
    if len(shape) == 1:
        return result
    return ctx.reshape(result, shape)


def _flattened(data: Any) -> tuple[list[Any], list[int]]:
    if not isinstance(data, list | tuple):
        return [data], []
    parts = [_flattened(item) for item in data]
    inner = parts[0][1] if parts else []
    return [value for values, _ in parts for value in values], [len(data), *inner]


def _list_dtype(ctx: ConversionContext, flat: list[Scalar]) -> torch.dtype:
    element_dtypes = {ctx.dtype(value) for value in flat}
    if not element_dtypes or any(dtype.is_floating_point for dtype in element_dtypes):
        return torch.get_default_dtype()
    return torch.bool if element_dtypes == {torch.bool} else torch.int64


@evaluator("aten::as_tensor")
def as_tensor(ctx: ConversionContext, data: Any, dtype: Any = None, *_: object) -> Any:
    """The tensor, cast if a dtype is requested."""
    target = dtype_of_code(dtype)
    if target is None:
        return data
    if isinstance(data, torch.Tensor):
        return data.to(target)
    return ctx.tensor(data, target)


@for_each("tril_indices", "triu_indices")
def _register_indices(name: str) -> None:
    @evaluator(f"aten::{name}")
    def of_triangle(
        ctx: ConversionContext,
        rows: Size,
        columns: Size,
        offset: Size = 0,
        *options: object,
    ) -> Any:
        if any(isinstance(value, DynamicScalar) for value in (rows, columns, offset)):
            raise Unconvertible(
                f"{name}: the number of elements of a triangle of dynamic size is known only at "
                "run time"
            )
        dtype = dtype_of_code(options[0] if options else None) or torch.int64
        return getattr(torch, name)(rows, columns, offset, dtype=dtype)


def _refuse_random(ctx: ConversionContext, node: Node, *_: object) -> Any:
    raise Unconvertible(
        f"{node.kind()} is random, so its output cannot be compared with a golden",
        "pass the noise as an input, or keep the operator in torch",
    )


RANDOM = """
rand rand.generator randn randn.generator rand_like rand_like.generator randn_like
randn_like.generator randint randint.generator randint.low randint.low_generator randint_like
randint_like.low_dtype bernoulli bernoulli.p bernoulli.Tensor multinomial normal.Tensor_float
normal.float_Tensor normal.Tensor_Tensor normal.float_float randperm randperm.generator poisson
""".split()
for _key in RANDOM:
    evaluator(f"aten::{_key}")(_refuse_random)
