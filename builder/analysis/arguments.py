"""The arguments of an operator as hashable descriptions, for calls of its meta kernel.

Inputs are read by index: an iterator over them costs more than all of them do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from builder.analysis import constants
from builder.dtypes import dtype_of
from builder.graph_types import Node, Value

Fact = tuple[torch.dtype | None, int | None]
Reader = Callable[[Value, Callable[[Any], Fact]], Any]


class Tensor(NamedTuple):
    """A tensor. A dtype or rank of None is unknown."""

    dtype: torch.dtype | None
    rank: int | None


class Constant(NamedTuple):
    """A value to pass as it is. The type distinguishes 1, 1.0 and True, which are equal."""

    kind: type
    value: Any


class OneOf(NamedTuple):
    """A value that is not known, and the values to try for it."""

    values: tuple[Any, ...]


class Sizes(NamedTuple):
    """A list of sizes, of which only the number is considered. A length of None is unknown."""

    length: int | None


class Operator(NamedTuple):
    """An operator with a meta kernel, and how its arguments are read and passed."""

    name: str
    function: Any
    readers: tuple[Reader, ...]
    positional: int
    """The number of arguments before the keyword-only ones."""

    keywords: tuple[tuple[int, str], ...]
    """The position and the name of each keyword-only argument."""


COMPOSITE = frozenset(
    "linear matmul softmax log_softmax layer_norm group_norm instance_norm batch_norm dropout"
    " _convolution conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"
    " scaled_dot_product_attention max_pool1d max_pool2d max_pool3d avg_pool1d"
    " adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d std var flatten unflatten"
    " reshape expand_as broadcast_to type_as to contiguous narrow movedim swapaxes swapdims"
    " moveaxis pad one_hot tile where max min argsort isfinite var_mean std_mean"
    " __and__ __or__ __xor__ multiply true_divide divide subtract square"
    " upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d"
    " upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d".split()
)
"""Operators that torch composes of others, which all have a meta kernel. Not all composite
operators: `lstm` indexes its weights before it calls another operator.
"""
MAX_RANK = 24
"""Tensors of larger ranks are not evaluated."""

_ONES = frozenset(
    "kernel_size stride dilation groups num_groups step length k size end upscale_factor"
    " downscale_factor".split()
)
_ZEROS = frozenset("padding output_padding pad start index storage_offset".split())
_SIZES = frozenset("size sizes shape repeats output_size normalized_shape".split())
_FRACTION = Constant(float, 1.0)
_NUMBERS = {
    "IntType": Constant(int, 1),
    "FloatType": _FRACTION,
    "BoolType": Constant(bool, value=True),
    "ComplexType": Constant(complex, 1j),
    "NumberType": OneOf((1, 1.0, 1j, True)),
}
_NONE = Constant(type(None), None)


def described(
    operator: Operator, node: Node, fact: Callable[[Any], Fact]
) -> tuple[Any, ...]:
    """The arguments of a node. Raises LookupError if one can neither be read nor tried."""
    readers = operator.readers[: node.inputsSize()]
    return tuple(read(node.inputsAt(at), fact) for at, read in enumerate(readers))


@lru_cache(maxsize=4096)
def operator_of(schema: str) -> Operator | None:
    """The operator of a node's schema, if it returns tensors and can be called without a crash."""
    name, _, overload = schema.partition("(")[0].removeprefix("aten::").partition(".")
    function = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
    if not schema.startswith("aten::") or function is None:
        return None
    parsed = function._schema
    if (
        any(str(result.type) != "Tensor" for result in parsed.returns)
        or not parsed.returns
    ):
        return None
    if parsed.is_mutable:
        return None
    if name not in COMPOSITE and not _has_kernel(name, function.name()):
        return None
    arguments = parsed.arguments
    readers = tuple(
        _reader(argument.name, str(argument.real_type)) for argument in arguments
    )
    keywords = tuple(
        (at, argument.name)
        for at, argument in enumerate(arguments)
        if argument.kwarg_only
    )
    return Operator(name, function, readers, len(arguments) - len(keywords), keywords)


def _has_kernel(name: str, overload: str) -> bool:
    """Whether torch registers a kernel for meta tensors, or one for tensors of every backend.
    Internal operators are left out: their kernels check less.
    """
    if name.startswith("_") or name.endswith("_backward"):
        return False
    try:
        return any(
            torch._C._dispatch_has_kernel_for_dispatch_key(overload, key)
            for key in ("Meta", "CompositeExplicitAutograd")
        )
    except RuntimeError:
        # operators that exist only in TorchScript are unknown to the dispatcher
        return False


def _reader(name: str, kind: str) -> Reader:
    """How an argument is described.

    Numbers that only have to fit the sizes of the tensors (`groups`, `kernel_size`) are replaced by
    numbers that fit all: neither dtype nor rank depends on them. Fractions are replaced, too.
    """
    without_optional = kind
    if kind.startswith("Optional["):
        without_optional = kind[len("Optional[") : -1]
    if without_optional == "Device":
        # also in place of None, which would be the CPU
        return _READERS["Device"]
    if name == "bias":
        return _always(_NONE)  # it is added in place
    read: Reader
    if without_optional == "List[int]" and name in _SIZES:
        read = _sizes
    elif without_optional == "int" and name in _ONES | _ZEROS:
        read = _always(Constant(int, int(name in _ONES)))
    elif without_optional == "List[int]" and name in _ONES | _ZEROS:
        read = _filled(Constant(int, int(name in _ONES)))
    else:
        read = _READERS.get(without_optional, _unread)
    if without_optional != kind:
        return _or_none(read)
    return read


def _or_none(read: Reader) -> Reader:
    def optional(value: Value, fact: Callable[[Any], Fact]) -> Any:
        kind = value.type().kind()
        if kind == "NoneType":
            return _NONE
        if kind in ("OptionalType", "AnyType"):
            raise LookupError
        return read(value, fact)

    return optional


def _always(number: Constant) -> Reader:
    """A number in place of the argument's."""
    return lambda value, fact: number


def _filled(number: Constant) -> Reader:
    """A number in place of each element of a list."""

    def read(value: Value, fact: Callable[[Any], Fact]) -> Any:
        if value.type().kind() == "IntType":  # torch repeats it for each axis
            return number
        length = constants.list_length(value)
        if length is None:
            raise LookupError
        return (number,) * length

    return read


def _unread(value: Value, fact: Callable[[Any], Fact]) -> Any:
    """An argument of a type that torch passes to a kernel without a check, such as a generator."""
    if value.type().kind() != "NoneType":
        raise LookupError
    return _NONE


def _tensor(value: Value, fact: Callable[[Any], Fact]) -> Tensor:
    dtype, rank = fact(value)
    if rank is not None and rank > MAX_RANK:
        raise LookupError
    return Tensor(dtype, rank)


def _tensors(value: Value, fact: Callable[[Any], Fact]) -> tuple[Any, ...]:
    items = constants.list_items(value)
    if items is None:
        raise LookupError
    return tuple(_item(item, fact) for item in items)


def _item(item: Any, fact: Callable[[Any], Fact]) -> Any:
    """An element of a list of tensors, which is an element of a constant list or a value."""
    if isinstance(item, torch.Tensor):
        return Tensor(item.dtype, item.dim())
    if item is None:
        return _NONE
    return _or_none(_tensor)(item, fact)


def _sizes(value: Value, fact: Callable[[Any], Fact]) -> Sizes:
    return Sizes(constants.list_length(value))


def _dtype(value: Value, fact: Callable[[Any], Fact]) -> Any:
    code = value.toIValue()
    if code is None:
        return OneOf((torch.float32, torch.int64))
    dtype = dtype_of(code)
    if dtype is None:
        raise LookupError
    return Constant(torch.dtype, dtype)


def _layout(value: Value, fact: Callable[[Any], Fact]) -> Constant:
    if value.toIValue() != 0:  # strided
        raise LookupError
    return _NONE


def _number(value: Value, fact: Callable[[Any], Fact]) -> Any:
    """A number of the same type: the dtype depends on it, and nothing on the number."""
    number = _NUMBERS.get(value.type().kind())
    if number is None:
        raise LookupError
    return number


def _integer(value: Value, fact: Callable[[Any], Fact]) -> Any:
    number = value.toIValue()
    if number is None:
        return OneOf((1, 0, -1))
    return Constant(int, number)


def _integers(value: Value, fact: Callable[[Any], Fact]) -> Any:
    if value.type().kind() == "IntType":  # torch repeats it for each axis
        return _integer(value, fact)
    items = constants.list_items(value)
    if items is None:
        raise LookupError
    return tuple(
        Constant(int, item) if isinstance(item, int) else _integer(item, fact)
        for item in items
    )


def _flag(value: Value, fact: Callable[[Any], Fact]) -> Any:
    flag = value.toIValue()
    if flag is None:
        return OneOf((True, False))
    return Constant(bool, flag)


def _text(value: Value, fact: Callable[[Any], Fact]) -> Constant:
    text = value.toIValue()
    if text is None:
        raise LookupError
    return Constant(str, text)


_READERS: dict[str, Reader] = {
    "Tensor": _tensor,
    "List[Tensor]": _tensors,
    "List[Optional[Tensor]]": _tensors,
    "ScalarType": _dtype,
    "Layout": _layout,
    "MemoryFormat": _always(Constant(torch.memory_format, torch.contiguous_format)),
    "Device": _always(Constant(torch.device, torch.device("meta"))),
    "number": _number,
    "float": _always(_FRACTION),
    "List[float]": _filled(_FRACTION),
    "int": _integer,
    "List[int]": _integers,
    "bool": _flag,
    "str": _text,
}
