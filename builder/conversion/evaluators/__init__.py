"""Static nodes: evaluated while the network is built; with DynamicScalars they become arithmetic on
shape tensors.
"""

from builder.conversion.evaluators import (
    branches,
    containers,
    creation,
    loops,
    metadata,
    numbers,
    prim,
    traced,
)

__all__ = [
    "branches",
    "containers",
    "creation",
    "loops",
    "metadata",
    "numbers",
    "prim",
    "traced",
]
