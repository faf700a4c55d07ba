"""Padding: one ISliceLayer that starts before an axis and ends after it; its mode defines the
outside elements.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from builder.conversion import dtypes
from builder.conversion.context import ConversionContext
from builder.conversion.dynamic import Size
from builder.conversion.registry import converter, for_each
from builder.conversion.values import Number
from builder.engine import ITensor

MODES = {
    "constant": "FILL",
    "reflect": "REFLECT",
    "replicate": "CLAMP",
    "circular": "WRAP",
}
ENUM = ("reflect", "replicate", "circular", "constant")
"""The numbers of _pad_enum's modes (at::padding_mode)."""


def padded(
    ctx: ConversionContext, x: ITensor, pad: list[Size], mode: str, value: float = 0.0
) -> ITensor:
    """torch.nn.functional.pad: `pad` is (before, after) of the last axis, then of the one before
    it; negative values crop.
    """
    if all(amount == 0 for amount in pad):
        return x
    sizes = ctx.sizes(x)
    starts: list[Size] = [0] * len(sizes)
    for index in range(len(pad) // 2):
        axis = len(sizes) - 1 - index
        before, after = pad[2 * index : 2 * index + 2]
        starts[axis] = -before
        sizes[axis] += before + after
    return _cropped_or_padded(ctx, x, pad, starts, sizes, mode, value)


def _cropped_or_padded(
    ctx: ConversionContext,
    x: ITensor,
    pad: list[Size],
    starts: list[Size],
    sizes: list[Size],
    mode: str,
    value: float,
) -> ITensor:
    if all(isinstance(amount, int) and amount <= 0 for amount in pad):
        return ctx.slice(x, starts, sizes)
    filled = mode == "constant" and value != 0
    fill = None
    if filled:
        fill = ctx.constant(torch.tensor(value).to(dtypes.from_trt(x.dtype)))
    return ctx.slice(x, starts, sizes, mode=MODES[mode], fill=fill)


def _fits(ctx: ConversionContext, args: SimpleNamespace) -> str | None:
    """no more pads than axes"""
    pad = args.pad if hasattr(args, "pad") else args.padding
    if len(pad) > 2 * ctx.rank(args.self):
        return f"{len(pad) // 2} axes to pad in a tensor of rank {ctx.rank(args.self)}"
    return None


@for_each(("reflection_pad", "reflect"), ("replication_pad", "replicate"))
def _register(name: str, mode: str) -> None:
    @converter(
        *(f"aten::{name}{axes}d" for axes in (1, 2, 3)),
        when=_fits,
    )
    def pad(ctx: ConversionContext, x: ITensor, padding: list[Size]) -> ITensor:
        """The tensor padded by reflection, or by repeating its edges"""
        return padded(ctx, x, padding, mode)


@converter("aten::pad", "aten::constant_pad_nd", "aten::_pad_enum", when=_fits)
def pad(
    ctx: ConversionContext,
    x: ITensor,
    pad: list[Size],
    mode: str | int = "constant",
    value: Number | None = None,
) -> Any:
    """torch.nn.functional.pad"""
    name = mode if isinstance(mode, str) else ENUM[mode]
    return padded(ctx, x, pad, name, value or 0.0)


@converter("aten::_pad_circular", when=_fits)
def pad_circular(ctx: ConversionContext, x: ITensor, pad: list[Size]) -> Any:
    """x padded circularly"""
    return padded(ctx, x, pad, "circular")
