"""What can be told of dtypes without inputs: results of comparisons, of casts, of operators that copy a dtype along."""

from __future__ import annotations

from typing import Any

import torch

from builder.lowering import ir
from builder.lowering.passes import Context, lowering_pass

_BOOL = frozenset(
    f"aten::{name}"
    for name in (
        "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "isposinf", "isneginf",
        "logical_and", "logical_or", "logical_xor", "logical_not", "any", "all",
    )
)  # fmt: skip
_LONG = frozenset(["aten::argmax", "aten::argmin", "aten::argsort", "aten::nonzero", "aten::bucketize"])
# These give the dtype of their first input.
_ALONG = frozenset(
    f"aten::{name}"
    for name in (
        "reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "t", "expand",
        "expand_as", "repeat", "select", "slice", "narrow", "contiguous", "clone", "detach", "index_select", "flip",
        "roll", "relu", "neg", "bitwise_not", "tril", "triu", "masked_fill", "gather", "scatter", "index_put",
        "constant_pad_nd", "movedim", "linear", "_convolution", "layer_norm", "batch_norm", "group_norm", "max_pool2d",
        "avg_pool2d", "adaptive_avg_pool2d", "hardtanh", "gelu", "matmul", "bmm", "mm",
    )
)  # fmt: skip
_DTYPE_AT = {"aten::to": 1, "aten::zeros": 1, "aten::ones": 1, "aten::full": 2, "aten::softmax": 2}


class Dtypes:
    """The dtype of each value as far as it follows from the graph alone; asked in program order, so each answer is one
    step."""

    def __init__(self) -> None:
        self._known: dict[int, torch.dtype | None] = {}

    def of(self, value: Any) -> torch.dtype | None:
        """The dtype of a tensor, None when it depends on the inputs."""
        found = self._known.get(value.unique())
        return found if found is not None else self._constant(value)

    def _constant(self, value: Any) -> torch.dtype | None:
        known = ir.constant(value)
        return known.dtype if isinstance(known, torch.Tensor) else None

    def learn(self, node: Any) -> None:
        """Note the dtypes of a node's outputs."""
        if node.outputsSize() == 1 and node.output().type().kind() == "TensorType":
            self._known[node.output().unique()] = self._result(node)

    def _result(self, node: Any) -> torch.dtype | None:
        kind = node.kind()
        if kind in _BOOL:
            return torch.bool
        if kind in _LONG:
            return torch.int64
        if kind in _DTYPE_AT and node.inputsSize() > _DTYPE_AT[kind]:
            given = ir.constant(node.inputsAt(_DTYPE_AT[kind]))
            if isinstance(given, int) and not isinstance(given, bool):
                return dtype_of(given)
            return self.of(node.inputsAt(0)) if kind == "aten::softmax" and given is None else None
        return self.of(node.inputsAt(0)) if kind in _ALONG else None


_BY_NUMBER = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16, 6: torch.float32,
    7: torch.float64, 11: torch.bool, 15: torch.bfloat16,
}  # fmt: skip
_NUMBERS = {dtype: number for number, dtype in _BY_NUMBER.items()}


def dtype_of(number: int) -> torch.dtype | None:
    """The dtype that a graph writes as this number (c10/core/ScalarType.h)."""
    return _BY_NUMBER.get(number)


@lowering_pass("fold-dtypes")
def fold_dtypes(graph: Any, context: Context) -> None:
    """Replace `x.dtype` by a constant where the graph tells it, and remove casts to the dtype that a value already
    has."""
    dtypes = Dtypes()
    for node in ir.walk(graph):
        kind = node.kind()
        if kind == "prim::dtype" and (known := dtypes.of(node.inputsAt(0))) is not None:
            ir.replace(node, [ir.insert_constant(graph, _NUMBERS[known], node)])
        elif kind == "aten::is_floating_point" and (known := dtypes.of(node.inputsAt(0))) is not None:
            ir.replace(node, [ir.insert_constant(graph, known.is_floating_point, node)])
        elif kind == "aten::to" and _same(node, dtypes):
            ir.bypass(node)
        else:
            dtypes.learn(node)


def _same(node: Any, dtypes: Dtypes) -> bool:
    """Whether a cast asks for the dtype that its input has: a known one, or that of the very same tensor."""
    wanted = node.inputsAt(1)
    if wanted.node().kind() == "prim::dtype" and wanted.node().inputsAt(0) == node.inputsAt(0):
        return True
    number = ir.constant(wanted)
    known = dtypes.of(node.inputsAt(0))
    return known is not None and isinstance(number, int) and dtype_of(number) is known
