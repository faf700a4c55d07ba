"""Decompositions of composite operators: Python functions on tensors, compiled by TorchScript.

    @decomposition("aten::mse_loss(Tensor self, Tensor target, int reduction=1) -> Tensor")
    def mse_loss(self: Tensor, target: Tensor, reduction: int) -> Tensor:
        \"\"\"(self - target)^2\"\"\"
        difference = self - target
        return reduced(difference * difference, reduction)

Every composite operator is defined here once, in the file of its family. Lowering replaces the
operators that a pass of `builder/lowering/passes/decompose.py` names. All others stay one node in
the lowered graph, and conversion walks their decomposition.
"""

from builder.decompositions.registry import (
    DECOMPOSITIONS,
    Condition,
    Decomposition,
    Number,
    decomposition,
)

# isort: split
# Importing a family fills the table.
from builder.decompositions import (
    activation,
    attention,
    embedding,
    indexing,
    linalg,
    losses,
    normalization,
    pointwise,
    pooling,
    shape,
    special,
    statistics,
)

__all__ = [
    "DECOMPOSITIONS",
    "Condition",
    "Decomposition",
    "Number",
    "activation",
    "attention",
    "decomposition",
    "embedding",
    "indexing",
    "linalg",
    "losses",
    "normalization",
    "pointwise",
    "pooling",
    "shape",
    "special",
    "statistics",
]
