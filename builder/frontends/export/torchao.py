"""torchao's operators that quantize activations, and the subsequent integer products. torchao
multiplies integers (`aten::_int_mm`) and scales the result.

TensorRT has no such product: it multiplies the outputs of pairs of quantize and dequantize. A
quantized tensor is therefore represented by its dequantized floats. A product is deferred until its
scales are known, and the last scale emits a linear layer. Sums are computed in float, which differs
from torch only by rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from builder.errors import LoweringError
from builder.frontends.export.numbers import is_number
from builder.frontends.export.origins import location

if TYPE_CHECKING:
    from builder.frontends.export.walker import Walker

NAMESPACE = "torchao"
_SHIFT = 128
"""What torchao adds to int8 activations for processors that multiply uint8 by int8. It subtracts
the sums of the weights, multiplied by this, from the product.
"""
_PT2E = "quantize with prepare_pt2e and convert_pt2e of torchao.quantization.pt2e"
_SHAPES = frozenset(
    f"aten.{name}" for name in ("reshape", "view", "flatten", "unsqueeze")
)
_FOLDED = _SHAPES | frozenset(
    f"aten.{name}"
    for name in ("t", "transpose", "to", "zeros_like", "full_like", "sum", "mul")
)
"""Operators that are evaluated if they read weights, scales and zero points."""


@dataclass(frozen=True)
class Rounded:
    """The result of quantizing a float tensor.

    `value` has the dequantized floats; `scale` is the program's node, and `static` is whether it is
    a constant. `dtype` is that of the program's integers, which are larger by `shift`.
    """

    node: torch.fx.Node
    value: Any
    scale: torch.fx.Node
    static: bool
    dtype: torch.dtype = torch.int8
    shift: int = 0


@dataclass(frozen=True)
class Product:
    """Rounded activations multiplied by int8 weights (inputs, outputs), until both are scaled.

    `shift` is that of the activations, until the sums of the weights are subtracted.
    """

    node: torch.fx.Node
    rounded: Rounded
    weight: torch.Tensor
    is_scaled: bool = False
    scales: torch.Tensor | None = None
    shift: int = 0


@dataclass(frozen=True)
class NoZeroPoint:
    """The zero points of symmetric scales: all zero."""

    node: torch.fx.Node


Waiting = Rounded | Product | NoZeroPoint


def error_of(waiting: Waiting) -> LoweringError:
    """The error for a reader that requires a tensor of the graph."""
    problems = {
        Rounded: "an activation that torchao has rounded is read by an operator other than reshape,"
        " a product with int8 weights, and dequantize_affine",
        Product: "a product of whole numbers is read before it is multiplied by both scales",
        NoZeroPoint: "zero points of torchao are read by an operator other than quantize_affine",
    }
    return LoweringError(
        problems[type(waiting)], where=location(waiting.node), fix=_PT2E
    )


def call(walker: Walker, node: Any, name: str, arguments: Mapping[str, Any]) -> Any:
    """Return the value of a node of torchao's operators.

    Raises LoweringError for quantization that no layer supports.
    """
    if name == "choose_qparams_affine":
        return _chosen(walker, node, arguments)
    if name == "quantize_affine":
        return _quantized(walker, node, arguments)
    rounded = arguments.get("input")
    if (
        name == "dequantize_affine"
        and isinstance(rounded, Rounded)
        and not rounded.shift
    ):
        if _source(node.args[2]) is not rounded.scale:
            raise walker.error(
                "a tensor is dequantized with other scales than those that quantized it",
                fix=_PT2E,
            )
        return rounded.value
    if (weight := _restored(walker, node)) is not None:
        return weight
    raise walker.error(
        "a tensor is dequantized that the program does not quantize", fix=_PT2E
    )


def _restored(walker: Walker, node: Any) -> torch.Tensor | None:
    """The result of a call on constants, such as the floats of constant weights; None if an
    argument depends on inputs.
    """
    args = []
    for arg in node.args:
        if _is_node(arg):
            arg = tensor_of(walker, arg)
            if arg is None:
                return None
        args.append(arg)
    restored: torch.Tensor = node.target(*args, **node.kwargs)
    return restored


def read(walker: Walker, node: Any, name: str, args: Sequence[Any]) -> Any:
    """Return the result of an ATen operator on a deferred product; None if it needs a tensor."""
    first, *_ = waiting = [arg for arg in args if isinstance(arg, Waiting)]
    if len(waiting) != 1:
        return None
    if isinstance(first, Rounded):
        return _read_rounded(walker, node, name, args, first)
    if (
        isinstance(first, Product)
        and name in ("aten.sub", "aten.sub_")
        and args[0] is first
    ):
        return _unshifted(walker, node, first)
    if isinstance(first, Product) and name == "aten.to":
        # a lower precision would round the sums
        if _dtype(node) == torch.float32:
            return replace(first, node=node)
        return None
    if isinstance(first, Product) and name == "aten.mul":
        return _scaled(walker, node, first)
    return None


def _read_rounded(
    walker: Walker, node: Any, name: str, args: Sequence[Any], rounded: Rounded
) -> Any:
    """Return the result of an operator on a rounded activation; None if it needs a tensor."""
    if args[0] is not rounded:
        return None
    if name in ("aten.reshape", "aten.view"):
        value = walker.emit("aten::reshape", [rounded.value, args[1]])
        return replace(rounded, node=node, value=value)
    if name == "aten.to" and _dtype(node) == (
        torch.uint8 if rounded.shift else torch.int32
    ):
        return replace(rounded, node=node, dtype=_dtype(node))
    if name == "aten.add" and rounded.dtype == torch.int32 and not node.kwargs:
        is_shift = not rounded.shift and is_number(args[1], _SHIFT)
        if is_shift:
            return replace(rounded, node=node, shift=_SHIFT)
        return None
    if name == "aten._int_mm" and rounded.dtype == (
        torch.uint8 if rounded.shift else torch.int8
    ):
        weight = tensor_of(walker, node.args[1])
        if weight is None:
            return None
        return Product(node, rounded, weight, shift=rounded.shift)
    return None


def _unshifted(walker: Walker, node: Any, product: Product) -> Product | None:
    """The product without the term that the shift of the activations adds; None if another number
    is subtracted.
    """
    added = product.weight.sum(0, keepdim=True, dtype=torch.int32) * product.shift
    subtracted = tensor_of(walker, node.args[1])
    read_once = len(node.args[0].users) == 1 and not node.kwargs
    if (
        not product.shift
        or not read_once
        or subtracted is None
        or not torch.equal(subtracted, added)
    ):
        return None
    return replace(product, node=node, shift=0)


def tensor_of(walker: Walker, item: Any) -> torch.Tensor | None:
    """The constant tensor of a node; None if it depends on inputs."""
    if not _is_node(item):
        return item if isinstance(item, torch.Tensor) else None
    if item.op != "call_function":
        constant = walker.constant_of(walker.results.get(item))
        return constant if isinstance(constant, torch.Tensor) else None
    if str(item.target).rpartition(".")[0] not in _FOLDED:
        return None
    return _restored(walker, item)


def _is_node(item: Any) -> bool:
    return isinstance(item, torch.fx.Node)


def _dtype(node: Any) -> torch.dtype:
    return node.meta["val"].dtype  # type: ignore[no-any-return]


def _source(item: Any) -> Any:
    """The node that computes a scale, before operators that only move its axes."""
    while _is_node(item) and item.op == "call_function":
        name = str(item.target).rpartition(".")[0]
        keeps_dtype = name == "aten.to" and _dtype(item) == _dtype(item.args[0])
        if name not in _SHAPES and not keeps_dtype:
            break
        item = item.args[0]
    return item


def _check(walker: Walker, node: Any, arguments: Mapping[str, Any], dtype: str) -> None:
    """Raise LoweringError for grids other than int8 of float32 activations."""
    (tensor, *_) = node.args
    if not _is_node(tensor) or _dtype(tensor) != torch.float32:
        raise walker.error(
            "torchao rounds an activation that is not float32", fix=_PT2E
        )
    if arguments[dtype] != torch.int8:
        raise walker.error(
            f"torchao rounds an activation to {arguments[dtype]}, not int8", fix=_PT2E
        )


def _limits(arguments: Mapping[str, Any]) -> list[int]:
    """The minimum and maximum integer."""
    limits = [arguments.get("quant_min"), arguments.get("quant_max")]
    return [
        default if item is None else int(item)
        for item, default in zip(limits, (-128, 127), strict=True)
    ]


def _chosen(walker: Walker, node: Any, arguments: Mapping[str, Any]) -> Any:
    """Emit the scales of each request: the maximum magnitude divided by half of the range."""
    _check(walker, node, arguments, "target_dtype")
    low, high = limits = _limits(arguments)
    if arguments["mapping_type"] != "SYMMETRIC" or limits != [-128, 127]:
        raise walker.error(
            "torchao chooses scales that are not symmetric, or of another range than int8",
            fix=_PT2E,
        )
    axes = _reduced(walker, node.args[0], arguments["block_size"])
    if arguments.get("keepdim") is not True:
        raise walker.error(
            "torchao chooses scales without their axes (keepdim=False)", fix=_PT2E
        )
    magnitude = walker.emit("aten::abs", [arguments["input"]])
    greatest = walker.emit("aten::amax", [magnitude, axes, True])
    scale = walker.emit("aten::div", [greatest, (high - low) / 2])
    least = arguments.get("eps")
    if least is None:
        least = torch.finfo(torch.float32).smallest_normal
    return walker.emit("aten::clamp_min", [scale, least]), NoZeroPoint(node)


def _reduced(walker: Walker, tensor: Any, block: Sequence[Any]) -> list[int]:
    """The axes that one scale covers: a block has their full length, and 1 of all others."""
    shape = tensor.meta["val"].shape
    sizes = [item if isinstance(item, int) else None for item in block]
    axes = [
        axis
        for axis, (size, length) in enumerate(zip(sizes, shape, strict=True))
        if size is None or (isinstance(length, int) and size == length)
    ]
    if any(size != 1 for axis, size in enumerate(sizes) if axis not in axes):
        raise walker.error("torchao rounds activations in blocks of an axis", fix=_PT2E)
    return axes


def _refuse_zero_points(walker: Walker, value: Any) -> None:
    zero = tensor_of(walker, value)
    if zero is None or bool((zero != 0).any()):
        raise walker.error("torchao rounds an activation with zero points", fix=_PT2E)


def _quantized(walker: Walker, node: Any, arguments: Mapping[str, Any]) -> Rounded:
    _check(walker, node, arguments, "output_dtype")
    value = arguments["input"]
    scale = arguments["scale"]
    limits = _limits(arguments)
    if not isinstance(arguments.get("zero_point"), NoZeroPoint):
        _refuse_zero_points(walker, node.args[3])
    constant = tensor_of(walker, node.args[2])
    source = _source(node.args[2])
    if constant is not None:
        if constant.numel() != 1:
            raise walker.error(
                "torchao rounds an activation with more than one constant scale",
                fix="use granularity PerTensor for activations",
            )
        numbers = [float(constant), 0, *limits]
        rounded = walker.emit(
            "aten::fake_quantize_per_tensor_affine", [value, *numbers]
        )
        return Rounded(node, rounded, source, static=True)
    if node.args[2].meta["val"].dim() != node.args[0].meta["val"].dim():
        raise walker.error(
            "torchao rounds an activation with scales of other axes", fix=_PT2E
        )
    inverse = walker.emit("aten::reciprocal", [scale])
    scaled = walker.emit("aten::mul", [value, inverse])
    steps = walker.emit("aten::round", [scaled])
    whole = walker.emit("aten::clamp", [steps, *limits])
    rounded = walker.emit("aten::mul", [whole, scale])
    return Rounded(node, rounded, source, static=False)


def _scaled(walker: Walker, node: Any, product: Product) -> Any:
    """Apply one of its scales to the product. With both it becomes a linear layer. None for another
    factor.
    """
    if product.shift:
        return None
    first, second = node.args[:2]
    factor = first
    if walker.results.get(first) is product:
        factor = second
    if not product.is_scaled and _source(factor) is product.rounded.scale:
        shape = factor.meta["val"].shape
        if len(shape) > 2 or (len(shape) > 0 and shape[-1] != 1):
            return None
        product = replace(product, node=node, is_scaled=True)
    else:
        scales = tensor_of(walker, factor)
        outputs = product.weight.shape[1]
        if (
            scales is None
            or product.scales is not None
            or scales.numel() not in (1, outputs)
        ):
            return None
        scales = scales.to(torch.float32).reshape(-1).expand(outputs).contiguous()
        product = replace(product, node=node, scales=scales)
    if product.is_scaled and product.scales is not None:
        return _layer(walker, product)
    return product


def _layer(walker: Walker, product: Product) -> Any:
    scales = product.scales
    assert scales is not None
    weight = (product.weight.t().to(torch.float32) * scales[:, None]).contiguous()
    rounded_weight: Any = weight
    if product.rounded.static and bool((scales > 0).all()):
        zeros = torch.zeros(len(scales), dtype=torch.int32)
        rounded_weight = walker.emit(
            "aten::fake_quantize_per_channel_affine",
            [weight, scales, zeros, 0, -128, 127],
        )
    return walker.emit("aten::linear", [product.rounded.value, rounded_weight, None])
