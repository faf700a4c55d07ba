"""Values that decide sizes: of an input, of which TensorRT wants a range that a manifest does not
tell, and others, which it cannot take for sizes at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from builder.conversion.dynamic import DynamicScalar, Size, of_lengths
from builder.conversion.sizes import kind_of
from builder.engine import INetworkDefinition, ITensor

if TYPE_CHECKING:
    from builder.conversion.lengths import Lengths


DECIDES = "a size depends on the value of an input, for which TensorRT needs a range"


DATA = "a size depends on data, and TensorRT computes sizes from shapes only"
FIX = "take the size from the shape of an input"
_UNKNOWN = frozenset("CONDITIONAL_OUTPUT RECURRENCE LOOP_OUTPUT ITERATOR".split())
"""Layers whose numbers TensorRT takes for no size, whatever they are made of."""


def from_data(ctx: Lengths, sizes: Sequence[Size]) -> bool:
    """Whether TensorRT could not tell one of the sizes from shapes. It must be asked before a layer
    reads them: TensorRT (RTX 1.7) finds it out by a failed assertion, and then fails for every
    layer that follows.
    """
    tensors = [
        size.tensor for size in sizes if isinstance(size, DynamicScalar) and not of_lengths(size)
    ]
    seen = dict[str, Any]()
    while tensors:
        tensor = tensors.pop()
        if tensor is None or tensor.name in seen or ctx.facts(tensor).sized:
            continue
        seen[tensor.name] = ctx.facts(tensor)
        layer = ctx.maker(tensor)
        if layer is None or kind_of(layer) in _UNKNOWN:
            if layer is not None or not _could_decide(tensor):
                return True
        elif kind_of(layer) != "SHAPE":
            tensors += [layer.get_input(index) for index in range(layer.num_inputs)]
    for facts in seen.values():
        facts.sized = True
    return False


def _could_decide(tensor: ITensor) -> bool:
    """Whether TensorRT makes a shape tensor of the input, and then asks for a range of its
    values.
    """
    return tensor.dtype.name in ("INT8", "INT32", "INT64") and _is_short(tensor)


def _is_short(tensor: ITensor) -> bool:
    """0-d, or of one fixed axis, as shape tensors are."""
    return len(tensor.shape) < 2 and -1 not in tuple(tensor.shape)


class DecidingInputs:
    """The network's inputs that could become shape tensors, as TensorRT calls these: 0-d, or of one
    fixed axis.
    """

    def __init__(self) -> None:
        self._seen = 0
        self._could: list[ITensor] = []

    def are_new(self, network: INetworkDefinition) -> bool:
        """Whether the layers made since the last call have turned one into a shape tensor."""
        for index in range(self._seen, network.num_inputs):
            tensor = network.get_input(index)
            if _is_short(tensor):
                self._could.append(tensor)
        self._seen = network.num_inputs
        could, self._could = (
            self._could,
            [tensor for tensor in self._could if not tensor.is_shape_tensor],
        )
        return len(could) != len(self._could)
