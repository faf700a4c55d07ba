"""Sizes that depend on values: on the value of an input, for which TensorRT requires a range that
manifests do not have, or on other data, which TensorRT does not support.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from builder.conversion.dynamic import DynamicScalar, Size, of_lengths
from builder.conversion.sizes import inputs_of, kind_of
from builder.engine import INetworkDefinition, ITensor

if TYPE_CHECKING:
    from builder.conversion.lengths import Lengths


DECIDES = "a size depends on the value of an input, for which TensorRT requires a range"


DATA = "a size depends on data, and TensorRT computes sizes from shapes only"
FIX = "take the size from the shape of an input"
_UNKNOWN = frozenset("CONDITIONAL_OUTPUT RECURRENCE LOOP_OUTPUT ITERATOR".split())
"""Layers whose outputs TensorRT never accepts as sizes."""


def from_data(ctx: Lengths, sizes: Sequence[Size]) -> bool:
    """Whether TensorRT cannot derive one of the sizes from shapes. Check this before a layer reads
    them: TensorRT (RTX 1.7) fails with an assertion, and then for every layer that follows.
    """
    tensors = [
        size.tensor
        for size in sizes
        if isinstance(size, DynamicScalar) and not of_lengths(size)
    ]
    visited = dict[str, Any]()
    while tensors:
        tensor = tensors.pop()
        if tensor.name in visited or ctx.facts(tensor).sized:
            continue
        visited[tensor.name] = ctx.facts(tensor)
        layer = ctx.producer(tensor)
        if layer is None or kind_of(layer) in _UNKNOWN:
            if layer is not None or not _could_decide(tensor):
                return True
        elif kind_of(layer) != "SHAPE":
            tensors += inputs_of(layer)
    for facts in visited.values():
        facts.sized = True
    return False


def _could_decide(tensor: ITensor) -> bool:
    """Whether TensorRT makes the input a shape tensor, and then requires a range of its values."""
    return tensor.dtype.name in ("INT8", "INT32", "INT64") and _is_short(tensor)


def _is_short(tensor: ITensor) -> bool:
    """0-d, or of one fixed axis, as shape tensors are."""
    return len(tensor.shape) < 2 and -1 not in tuple(tensor.shape)


class ShapeTensorInputs:
    """The network inputs that could become shape tensors: 0-d, or with one static axis."""

    def __init__(self) -> None:
        self._seen = 0
        self._could: list[ITensor] = []

    def are_new(self, network: INetworkDefinition) -> bool:
        """Whether the layers added since the last call made one of them a shape tensor."""
        for index in range(self._seen, network.num_inputs):
            tensor = network.get_input(index)
            if _is_short(tensor):
                self._could.append(tensor)
        self._seen = network.num_inputs
        could = self._could
        self._could = [tensor for tensor in self._could if not tensor.is_shape_tensor]
        return len(could) != len(self._could)
