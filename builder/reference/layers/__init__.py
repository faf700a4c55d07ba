"""The evaluations, by family; importing this package registers all of them."""

from __future__ import annotations

from builder.reference.layers import (
    activation,
    convolution,
    elementwise,
    gather,
    matrix,
    normalization,
    pooling,
    reduce,
    shape,
    slice,
    sources,
    unary,
)

__all__ = [
    "activation",
    "convolution",
    "elementwise",
    "gather",
    "matrix",
    "normalization",
    "pooling",
    "reduce",
    "shape",
    "slice",
    "sources",
    "unary",
]
