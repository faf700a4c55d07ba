"""The evaluations, by family; importing this package registers all of them."""

from __future__ import annotations

from builder.reference.layers import (
    activation,
    attention,
    convolution,
    elementwise,
    gather,
    matrix,
    normalization,
    pooling,
    quantization,
    reduce,
    sampling,
    scatter,
    selection,
    sequence,
    shape,
    slice,
    sources,
    unary,
)

__all__ = [
    "activation",
    "attention",
    "convolution",
    "elementwise",
    "gather",
    "matrix",
    "normalization",
    "pooling",
    "quantization",
    "reduce",
    "sampling",
    "scatter",
    "selection",
    "sequence",
    "shape",
    "slice",
    "sources",
    "unary",
]
