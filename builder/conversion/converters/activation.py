"""Activations that one IActivationLayer (or a few) express."""

from __future__ import annotations

from typing import Any

from builder.conversion.context import ConversionContext
from builder.conversion.registry import converter
from builder.engine.flavour import trt

PLAIN = {"relu": "RELU", "sigmoid": "SIGMOID", "tanh": "TANH"}


def _register(name: str, activation: str) -> None:
    @converter(f"aten::{name}(Tensor self) -> Tensor")
    def plain(ctx: ConversionContext, node: Any, x: Any) -> Any:
        return activate(ctx, x, activation)


for _name, _activation in PLAIN.items():
    _register(_name, _activation)


def activate(
    ctx: ConversionContext, x: Any, activation: str, alpha: float | None = None, beta: float | None = None
) -> Any:
    """One IActivationLayer on a floating tensor; `activation` is an ActivationType's name."""
    layer = ctx.net.add_activation(x, getattr(trt.ActivationType, activation))
    if alpha is not None:
        layer.alpha = alpha
    if beta is not None:
        layer.beta = beta
    return layer.get_output(0)
