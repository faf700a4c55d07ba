"""IActivationLayer and IParametricReLULayer: formulas of ActivationType's documentation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from builder.engine import ILayer
from builder.reference.dtypes import in_float32
from builder.reference.registry import evaluates

# f(x, alpha, beta); alpha and beta are float attributes of the layer.
ACTIVATIONS: dict[str, Callable[[Tensor, float, float], Tensor]] = {
    "RELU": lambda x, a, b: torch.relu(x),
    "SIGMOID": lambda x, a, b: torch.sigmoid(x),
    "TANH": lambda x, a, b: torch.tanh(x),
    "LEAKY_RELU": lambda x, a, b: torch.where(x >= 0, x, a * x),
    "ELU": lambda x, a, b: torch.where(x >= 0, x, a * torch.expm1(x)),
    "SELU": lambda x, a, b: torch.where(x > 0, b * x, b * a * torch.expm1(x)),
    "SOFTSIGN": lambda x, a, b: x / (1 + x.abs()),
    "SOFTPLUS": lambda x, a, b: a * torch.logaddexp(b * x, torch.zeros_like(x)),
    "CLIP": lambda x, a, b: x.clamp(max=b).clamp(min=a),
    "HARD_SIGMOID": lambda x, a, b: (a * x + b).clamp(0, 1),
    "SCALED_TANH": lambda x, a, b: a * torch.tanh(b * x),
    "THRESHOLDED_RELU": lambda x, a, b: torch.where(x > a, x, torch.zeros_like(x)),
    "GELU_ERF": lambda x, a, b: torch.nn.functional.gelu(x),
    "GELU_TANH": lambda x, a, b: torch.nn.functional.gelu(x, approximate="tanh"),
}


@evaluates("ACTIVATION")
@in_float32
def activation(layer: ILayer, x: Tensor) -> Tensor:
    """`type` of x with `alpha` and `beta`, element-wise. Integers stay integers."""
    return ACTIVATIONS[layer.type.name](x, layer.alpha, layer.beta).to(x.dtype)


@evaluates("PARAMETRIC_RELU")
@in_float32
def parametric_relu(layer: ILayer, x: Tensor, slopes: Tensor) -> Tensor:
    """x if it is at least 0, else x times its slope. Slopes are broadcast to x."""
    return torch.where(x >= 0, x, x * slopes)
