"""Metadata of tensors: sizes, rank, dtype, device, layout."""

from __future__ import annotations

import math
from typing import Any

import torch

from builder.conversion.arguments import static
from builder.conversion.context import ConversionContext
from builder.conversion.dynamic import same_size
from builder.conversion.registry import evaluator
from builder.conversion.values import Tensor
from builder.dtypes import code_of
from builder.graph_types import Node


@evaluator("aten::size", "aten::sym_size", "prim::shape")
def sizes(ctx: ConversionContext, tensor: Tensor) -> list[Any]:
    """The sizes of all axes; a dynamic one is a DynamicScalar, never -1."""
    return ctx.sizes(tensor)


@evaluator("aten::size.int", "aten::sym_size.int")
def size_of_axis(ctx: ConversionContext, tensor: Tensor, dim: int) -> Any:
    """The size of one axis."""
    return ctx.size(tensor, static(dim, "`dim`"))


@evaluator("aten::numel", "aten::sym_numel")
def numel(ctx: ConversionContext, tensor: Tensor) -> Any:
    """The product of the sizes."""
    return math.prod(ctx.sizes(tensor))


@evaluator("aten::dim")
def dim(ctx: ConversionContext, tensor: Tensor) -> int:
    """The rank."""
    return ctx.rank(tensor)


@evaluator("aten::len.Tensor")
def len_of_tensor(ctx: ConversionContext, tensor: Tensor) -> Any:
    """The size of the first axis."""
    return ctx.size(tensor, 0)


@evaluator("aten::is_floating_point")
def is_floating_point(ctx: ConversionContext, tensor: Tensor) -> bool:
    """Whether the dtype is a floating one."""
    return ctx.dtype(tensor).is_floating_point


@evaluator("aten::is_signed")
def is_signed(ctx: ConversionContext, tensor: Tensor) -> bool:
    """Whether the dtype has negative values."""
    return ctx.dtype(tensor).is_signed


@evaluator("aten::element_size")
def element_size(ctx: ConversionContext, tensor: Tensor) -> int:
    """The bytes of one element, in torch's dtype."""
    return ctx.dtype(tensor).itemsize


@evaluator("aten::is_contiguous", "aten::is_contiguous.memory_format")
def is_contiguous(ctx: ConversionContext, tensor: Tensor, *_: object) -> bool:
    """Always true: the tensors of a network have no strides."""
    return True


@evaluator("aten::is_same_size")
def is_same_size(ctx: ConversionContext, a: Any, b: Any) -> bool:
    """Whether all sizes are known to be equal."""
    if ctx.rank(a) != ctx.rank(b):
        return False
    pairs = zip(ctx.sizes(a), ctx.sizes(b), strict=True)
    return all(same_size(first, second) for first, second in pairs)


@evaluator("prim::dtype")
def dtype(ctx: ConversionContext, tensor: Tensor) -> int:
    """The dtype as TorchScript's integer code."""
    return code_of(ctx.dtype(tensor))


@evaluator("prim::device")
def device(ctx: ConversionContext, tensor: Tensor) -> torch.device:
    """Always the CPU: an engine has one device, so that comparisons of devices are true."""
    return torch.device("cpu")


@evaluator("prim::is_cpu")
def yes(ctx: ConversionContext, tensor: Tensor) -> bool:
    """True: all devices are read as the CPU, so that comparisons of devices are true."""
    return True


@evaluator("prim::layout", "aten::get_device")
def number_of(ctx: ConversionContext, node: Node, tensor: Tensor) -> int:
    """The layout is strided (0); a tensor on the CPU has no device number (-1)."""
    return 0 if node.kind() == "prim::layout" else -1


NEVER = (
    "prim::is_cuda prim::requires_grad prim::is_quantized prim::is_sparse prim::is_nested"
    " prim::is_mkldnn prim::is_xpu prim::is_mps prim::is_vulkan prim::is_meta prim::is_sparse_csr"
    " aten::is_complex"
).split()


@evaluator(*NEVER)
def no(ctx: ConversionContext, tensor: Tensor) -> bool:
    """False: tensors are real and dense, without gradients, on one device."""
    return False
