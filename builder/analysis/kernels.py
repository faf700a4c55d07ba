"""The dtype and the rank of an operator's results, from torch's meta kernels. Each tensor is
represented by a meta tensor of the same dtype and rank, with all sizes 2. An operator whose rank
depends on sizes, such as `squeeze`, is left out.

Only operators with a registered meta kernel are evaluated, and those in COMPOSED. Other kernels may
read memory that a meta tensor does not have, or index a list without a bounds check: `lstm` with
weights of size 2 is a segmentation fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from builder.analysis import constants
from builder.graph_types import Node, Value

Fact = tuple[torch.dtype | None, int | None]

SIZE = 2
BY_SIZES = frozenset(["squeeze", "squeeze_copy", "cat", "concat", "concatenate"])
"""Operators whose rank depends on sizes."""
COMPOSED = frozenset(
    "linear matmul softmax log_softmax layer_norm group_norm instance_norm batch_norm dropout"
    " conv1d conv2d conv3d scaled_dot_product_attention max_pool1d max_pool2d max_pool3d"
    " avg_pool1d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d std var"
    " flatten reshape pad one_hot".split()
)
"""Composite operators without a meta kernel. All operators that they call have one."""
ENUMERATIONS = ("ScalarType", "Layout", "MemoryFormat", "Generator", "Device", "Stream")
"""Types of arguments that torch passes to a kernel as numbers without a range check."""
MOST = 8
"""Larger ranks are not evaluated, because TensorRT does not support them."""
_SCHEMA = re.compile(r"aten::(\w+)(?:\.(\w+))?\(")


def facts_of(node: Node, fact: Callable[[Any], Fact]) -> list[Fact] | None:
    """The facts of each output of an operator; `fact` returns those of its inputs. None if they are
    not known, or torch has no meta kernel.
    """
    found = _SCHEMA.match(node.schema())
    if found is None or found[1] in BY_SIZES:
        return None
    try:
        arguments = tuple(_argument(value, fact) for value in node.inputs())
    except LookupError:
        return None
    return _evaluated(found[1], found[2] or "default", arguments)


def _argument(value: Value, fact: Callable[[Any], Fact]) -> Any:
    """A hashable description of an input. Raises LookupError if it is not known."""
    if constants.is_constant(value):
        known = constants.constant(value)
        if isinstance(known, torch.Tensor):
            return _tensor(known.dtype, known.dim())
        return tuple(known) if isinstance(known, list) else known
    if value.node().kind() == "prim::ListConstruct":
        items = constants.list_items(value)
        if items is None:
            raise LookupError
        return tuple(_argument(item, fact) for item in items)
    if value.type().kind() != "TensorType":
        raise LookupError
    return _tensor(*fact(value))


def _tensor(dtype: torch.dtype | None, rank: int | None) -> Any:
    if dtype is None or rank is None or rank > MOST:
        raise LookupError
    return torch.dtype, dtype, rank


def _is_tensor(described: object) -> bool:
    return isinstance(described, tuple) and described[:1] == (torch.dtype,)


@lru_cache(maxsize=4096)
def _evaluated(name: str, overload: str, described: tuple[Any, ...]) -> list[Fact] | None:
    operator = getattr(getattr(torch.ops.aten, name, None), overload, None)
    if operator is None or not _is_safe(operator, described):
        return None
    if any(str(result.type) != "Tensor" for result in operator._schema.returns):
        return None
    try:
        with torch.no_grad():
            made = _call(operator, [_example(item) for item in described])
    except Exception:  # kernels raise different errors for sizes or dtypes that do not fit
        return None
    # a traced number is a 0-d tensor, which has lower promotion priority than tensors with axes
    ranks = [item[2] for item in described if _is_tensor(item)]
    certain = len(ranks) == 1 or 0 not in ranks
    results = made if isinstance(made, tuple) else (made,)
    return [(tensor.dtype if certain else None, tensor.dim()) for tensor in results]


def _is_safe(operator: Any, described: tuple[Any, ...]) -> bool:
    """Whether a call on meta tensors can fail only with an exception, not with a crash."""
    schema = operator._schema
    name = schema.name.removeprefix("aten::")
    if schema.is_mutable or name.startswith("_") or name.endswith("_backward"):
        return False
    if name not in COMPOSED and not _has_kernel(operator.name()):
        return False
    return not any(
        value is not None
        and str(argument.real_type).removeprefix("Optional[").startswith(ENUMERATIONS)
        for argument, value in zip(schema.arguments, described, strict=False)
    )


def _has_kernel(name: str) -> bool:
    """Whether torch registers a meta kernel for an operator."""
    try:
        return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta"))
    except RuntimeError:  # operators that exist only in TorchScript are unknown to the dispatcher
        return False


def _call(operator: Any, values: list[Any]) -> Any:
    """The operator's results. A node passes keyword-only arguments by position."""
    named = zip(operator._schema.arguments, values, strict=False)
    keywords = {argument.name: value for argument, value in named if argument.kwarg_only}
    return operator(*values[: len(values) - len(keywords)], **keywords)


def _example(described: Any) -> Any:
    if _is_tensor(described):
        return torch.empty([SIZE] * described[2], dtype=described[1], device="meta")
    return [_example(item) for item in described] if isinstance(described, tuple) else described
