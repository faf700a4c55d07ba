"""Evaluators of TorchScript's prim:: nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from builder.conversion.arguments import known_keys
from builder.conversion.context import ConversionContext, Unconvertible
from builder.conversion.dynamic import DynamicScalar
from builder.conversion.facts import is_tensor
from builder.conversion.registry import evaluator
from builder.conversion.values import UNSET, Scalar, Tensor
from builder.dtypes import dtype_of
from builder.graph_types import Node


@evaluator("prim::Constant")
def constant(ctx: ConversionContext, node: Node) -> Any:
    """The constant's value; a tensor is the module's own storage, not a copy."""
    if not node.hasAttribute("value"):
        return None
    kind = node.kindOf("value")
    if kind == "t":
        return node.t("value")
    return node.output().toIValue()


@evaluator("prim::ListConstruct", "prim::TupleConstruct")
def construct(ctx: ConversionContext, *values: object) -> list[Any]:
    """Lists and tuples are Python lists of values."""
    return list(values)


@evaluator("prim::ListUnpack", "prim::TupleUnpack")
def unpack(ctx: ConversionContext, node: Node, values: list[Any]) -> Any:
    """One output for each element. Raises Unconvertible if the count differs; torch raises at run
    time.
    """
    if len(values) != node.outputsSize():
        raise Unconvertible(
            f"expected {node.outputsSize()} elements in a list of {len(values)}"
        )
    if len(values) == 1:
        return values[0]
    return values


@evaluator("prim::TupleIndex")
def tuple_index(ctx: ConversionContext, values: list[Any], index: int) -> Any:
    """values[index]"""
    return values[index]


@evaluator("prim::DictConstruct")
def dictionary(ctx: ConversionContext, *items: Any) -> Any:
    """Keys and values alternate. Raises Unconvertible if a key is known only at run time."""
    return dict(zip(known_keys(items[::2]), items[1::2], strict=True))


@evaluator(
    "prim::NumToTensor.Scalar",
    "prim::NumToTensor.bool",
    "aten::tensor.int",
    "aten::tensor.float",
    "aten::tensor.bool",
    "aten::as_tensor.int",
    "aten::as_tensor.float",
    "aten::as_tensor.bool",
)
def number_to_tensor(
    ctx: ConversionContext, value: Scalar, dtype: int | None = None, *_: bool | None
) -> Any:
    """A 0-d tensor of the number, with torch's dtype for it or the requested one."""
    target = dtype_of_code(dtype)
    if not isinstance(value, DynamicScalar):
        return torch.tensor(value, dtype=target)
    if target in (None, value.dtype):
        return replace(value, zero_dim=True)
    return ctx.tensor(value, target)


@evaluator("aten::scalar_tensor")
def scalar_tensor(
    ctx: ConversionContext, value: Scalar, dtype: int | None = None, *_: object
) -> Any:
    """A 0-d tensor, also of an int or a bool, with the default dtype unless another is
    requested.
    """
    return number_to_tensor(
        ctx, value, dtype_of_code(dtype) or torch.get_default_dtype()
    )


@evaluator(
    "prim::unchecked_cast", "prim::unchecked_unwrap_optional", "aten::_unwrap_optional"
)
def unchanged(ctx: ConversionContext, value: object, *_: object) -> Any:
    """Type refinements do nothing to the value."""
    return value


@evaluator("prim::tolist")
def to_list(ctx: ConversionContext, value: Tensor, *_: object) -> Any:
    """The elements of a static tensor, or the number of a 0-d tensor that the network computes.
    Refuses other tensors that the network computes.
    """
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if is_tensor(value) and ctx.rank(value):
        raise Unconvertible(
            "tolist of a tensor that the network computes",
            "read its elements with int(x[0]) or float(x[0]), or compute with tensors",
        )
    return ctx.scalar(value) if is_tensor(value) else value


_UNREAD: dict[str, Any] = {"BoolType": False, "IntType": 0, "FloatType": 0.0}


@evaluator("prim::Uninitialized")
def uninitialized(ctx: ConversionContext, node: Node) -> Any:
    """A value that no reachable path reads: any number of its type, UNSET for other types."""
    return _UNREAD.get(node.output().type().kind(), UNSET)


@evaluator("prim::RaiseException")
def raise_exception(ctx: ConversionContext, message: object, *_: object) -> Any:
    """Refused: the model always raises for these shapes."""
    raise Unconvertible(
        f"the model raises an exception here for the shapes in the manifest: {message}",
        "fix the shapes",
    )


def dtype_of_code(code: Any) -> torch.dtype | None:
    """The torch.dtype of TorchScript's integer code; a torch.dtype and None pass through. Raises
    Unconvertible for a code without a torch dtype.
    """
    if code is None or isinstance(code, torch.dtype):
        return code
    dtype = dtype_of(code)
    if dtype is None:
        raise Unconvertible(f"TensorRT has no dtype for TorchScript's number {code}")
    return dtype
