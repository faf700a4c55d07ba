"""Decompositions of composite operators: Python functions on tensors, compiled by TorchScript.

    @decomposition("aten::mse_loss")
    def mse_loss(self: Tensor, target: Tensor, reduction: int) -> Tensor:
        \"\"\"(self - target)^2\"\"\"
        difference = self - target
        return reduced(difference * difference, reduction)

Every composite operator is defined here once, in the file of its family. Lowering replaces the
operators that a pass of `builder/lowering/passes/decompose.py` names. All others stay one node in
the lowered graph, and conversion walks their decomposition. Importing this package fills the table.
"""

import importlib
import pkgutil

from builder.decompositions.fourier import fft, fft_of_real, irfft, rfft
from builder.decompositions.registry import (
    ABSENT,
    DECOMPOSITIONS,
    Condition,
    Decomposition,
    Number,
    decomposition,
    operator_schema,
)
from builder.decompositions.torchscript import graph as graph_of_function

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "ABSENT",
    "DECOMPOSITIONS",
    "Condition",
    "Decomposition",
    "Number",
    "decomposition",
    "fft",
    "fft_of_real",
    "graph_of_function",
    "irfft",
    "operator_schema",
    "rfft",
]
