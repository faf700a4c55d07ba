"""The content of a tensor after an in-place operator, as a new value."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from builder.graph_types import Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit

_INT = ir.INT
# The functional variants of these return another dtype even without a second tensor.
_ALWAYS_CAST = frozenset(
    "eq ne lt le gt ge logical_not logical_and logical_or logical_xor cumsum cumprod".split()
)
# The functional variants of these already return the dtype of the written tensor.
_NEVER_CAST = frozenset(
    "masked_fill index_put index_copy index_fill index_add scatter scatter_add"
    " scatter_reduce masked_scatter where addmm addbmm baddbmm addmv addr clamp_min"
    " clamp_max relu fill index_reduce".split()
)

# These let a tensor use other memory, or other elements of it. Their functional variants return the
# value, but other names of the tensor and its views are not what they were.
_OTHER_MEMORY = frozenset(f"aten::{name}_" for name in ("set", "resize", "resize_as"))


def cast_like(emit: Emit, new: Value, old: Value) -> Value:
    """`new` in the dtype of `old`."""
    dtype = emit.op("prim::dtype", old, type=_INT)
    return emit.op("aten::to", new, dtype, False, False, None)


def _copy(emit: Emit, node: Node, old: Value) -> Value:
    return emit.op("aten::expand_as", cast_like(emit, node.inputsAt(1), old), old)


def _fill(emit: Emit, node: Node, old: Value) -> Value:
    value = node.inputsAt(1)
    if value.type().kind() == "TensorType":
        return _copy(emit, node, old)
    return emit.op("aten::full_like", old, value, None, None, None, None, None)


def _zero(emit: Emit, node: Node, old: Value) -> Value:
    return emit.op("aten::zeros_like", old, None, None, None, None, None)


def _fill_diagonal(emit: Emit, node: Node, old: Value) -> Value:
    _, value, wrap = ir.inputs(node)
    filled = emit.op("aten::full_like", old, value, None, None, None, None, None)
    diagonal = emit.call(_on_main_diagonal, old, wrap)
    return emit.op("aten::where", diagonal, filled, old)


def depends_on_strides(node: Node) -> bool:
    """Whether the elements that a node writes depend on the strides of a view. PyTorch continues a
    wrapped diagonal by strides, which may leave the view.
    """
    wraps = node.kind() == "aten::fill_diagonal_"
    return wraps and ir.constant(node.inputsAt(2)) is not False


def _on_main_diagonal(x: Tensor, wrap: bool) -> Tensor:
    """True where all indices are equal, which is at multiples of the sum of the strides. With
    `wrap`, the diagonal of a tall matrix starts again below its last column.
    """
    step = 1
    for size in x.size()[1:]:
        step = step * size + 1
    positions = torch.arange(x.numel(), device="cpu")
    diagonal = positions % step == 0
    if not wrap:
        first_square = positions < step * x.size(-1)
        diagonal = torch.logical_and(diagonal, first_square)
    return diagonal.reshape(x.size())


_SPECIAL: dict[str, Callable[[Emit, Any, Any], Any]] = {
    "aten::copy_": _copy,
    "aten::fill_": _fill,
    "aten::zero_": _zero,
    "aten::fill_diagonal_": _fill_diagonal,
}


def result(emit: Emit, node: Node, old: Value) -> Any | None:
    """The new content of the first input of an in-place node; None if there is no functional
    form.
    """
    if node.kind() in _SPECIAL:
        return _SPECIAL[node.kind()](emit, node, old)
    twin = functional_twin(node.schema())
    if twin is None or node.kind() in _OTHER_MEMORY:
        return None
    new = emit.op(twin, *node.inputs())
    if _changes_dtype(node, twin.removeprefix("aten::")):
        return cast_like(emit, new, old)
    return new


def _changes_dtype(node: Node, name: str) -> bool:
    second_tensor = any(
        value.type().kind() == "TensorType" for value in ir.inputs(node)[1:]
    )
    if name.strip("_") in _ALWAYS_CAST:
        return True
    return second_tensor and name not in _NEVER_CAST


@lru_cache(maxsize=4096)
def functional_twin(schema_text: str) -> str | None:
    """The kind of the operator with the same arguments that writes nothing: `aten::add` for
    `aten::add_`, `aten::__and__` for `aten::__iand__`.
    """
    schema = ir.parse_schema(schema_text)
    name = schema.name.removeprefix("aten::")
    twin = schema.name.removesuffix("_")
    if name.startswith("__i"):
        twin = f"aten::__{name[3:]}"
    if twin == schema.name or not schema.name.startswith("aten::"):
        return None
    names = [argument.name for argument in schema.arguments]
    types = [str(argument.type) for argument in schema.arguments]
    for candidate in torch._C._jit_get_schemas_for_operator(twin):
        if [argument.name for argument in candidate.arguments] != names:
            continue
        # floor_divide_.Tensor is the variant of floor_divide without an overload name
        if (
            candidate.overload_name == schema.overload_name
            or [str(argument.type) for argument in candidate.arguments] == types
        ):
            return twin
    return None
