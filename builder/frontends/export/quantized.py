"""The quantized operators of PT2E (`quantized_decomposed`). A quantize and the dequantize of its
result form a fake quantization, as in QAT modules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from builder.frontends.export.contents import QUANTIZED

if TYPE_CHECKING:
    from builder.frontends.export.walker import Walker

NAMESPACE = "quantized_decomposed"
_PAIRS = "quantize with static scales, and a dequantize behind each quantize, as convert_pt2e does"


@dataclass(frozen=True)
class Grid:
    """Quantization parameters: scales and zero points, either one or one for each index of `axis`,
    and the integer range.
    """

    scale: torch.Tensor
    zero_point: torch.Tensor
    axis: int | None
    low: int
    high: int

    def same(self, other: Grid) -> bool:
        return (
            self.axis == other.axis
            and self.low == other.low
            and self.high == other.high
            and torch.equal(self.scale, other.scale)
            and torch.equal(self.zero_point, other.zero_point)
        )


@dataclass(frozen=True)
class Quantized:
    """A graph tensor that the node rounds to a grid, with its former dtype."""

    node: torch.fx.Node
    value: Any
    grid: Grid
    dtype: torch.dtype


def call(
    walker: Walker, node: torch.fx.Node, name: str, arguments: Mapping[str, Any]
) -> Any:
    """Return the value of a node of these operators: a Quantized for a quantize, the rounded value
    for a dequantize.

    Raises LoweringError for scales that are computed, and for a quantized tensor that the program
    does not quantize itself.
    """
    if name not in QUANTIZED:
        raise walker.error(
            f"{NAMESPACE}::{name} computes scales from values", fix=_PAIRS
        )
    grid = _grid(walker, arguments)
    dtype = arguments["dtype"]
    if dtype.is_floating_point:
        raise walker.error(
            f"{NAMESPACE}::{name} with {dtype} rounds to whole numbers before the cast",
            fix="quantize to int8 here, or export the float model and use `precision: fp8`",
        )
    source = arguments["input"]
    if name.startswith("quantize"):
        (tensor, *_) = node.args
        meta = source
        if isinstance(tensor, torch.fx.Node):
            meta = tensor.meta["val"]
        return Quantized(node, source, grid, meta.dtype)
    return _dequantized(walker, source, grid, node.meta["val"].dtype)


def _dequantized(walker: Walker, source: Any, grid: Grid, result: torch.dtype) -> Any:
    if isinstance(source, Quantized):
        if not source.grid.same(grid):
            raise walker.error(
                "a tensor is dequantized with other scales than those that quantized it",
                fix=_PAIRS,
            )
        rounded = _rounded(walker, source.value, grid)
        if result == source.dtype:
            return rounded
        return walker.emit("aten::to", [rounded, result, False, False, None])
    stored = walker.constant_of(source)
    if not isinstance(stored, torch.Tensor):
        raise walker.error(
            "a tensor is dequantized that the program does not quantize", fix=_PAIRS
        )
    return _rounded(walker, _restored(stored, grid).to(result), grid)


def _grid(walker: Walker, arguments: Mapping[str, Any]) -> Grid:
    scale, zero = (
        walker.constant_of(arguments.get(name, arguments.get(f"{name}s")))
        for name in ("scale", "zero_point")
    )
    axis = arguments.get("axis")
    limits = [
        walker.constant_of(arguments[name]) for name in ("quant_min", "quant_max")
    ]
    if scale is None or None in limits or (zero is None and axis is None):
        raise walker.error("a scale or zero point is computed from values", fix=_PAIRS)
    scales = torch.as_tensor(scale, dtype=torch.float32).reshape(-1)
    zeros = torch.zeros_like(scales)
    if zero is not None:
        zeros = torch.as_tensor(zero).reshape(-1)
    return Grid(scales, zeros.to(torch.int32), axis, int(limits[0]), int(limits[1]))


def _restored(stored: torch.Tensor, grid: Grid) -> torch.Tensor:
    """The float tensor that these integers represent; its values are already on the grid."""
    scale = grid.scale
    zero_point = grid.zero_point
    if grid.axis is not None:
        shape = [1] * stored.dim()
        shape[grid.axis] = -1
        scale = scale.reshape(shape)
        zero_point = zero_point.reshape(shape)
    return (stored.int() - zero_point).float() * scale


def _rounded(walker: Walker, value: Any, grid: Grid) -> Any:
    limits = [grid.low, grid.high]
    if grid.axis is None:
        numbers = [float(grid.scale), int(grid.zero_point), *limits]
        return walker.emit("aten::fake_quantize_per_tensor_affine", [value, *numbers])
    return walker.emit(
        "aten::fake_quantize_per_channel_affine",
        [value, grid.scale, grid.zero_point, grid.axis, *limits],
    )
