"""Inputs whose values decide sizes: TensorRT wants a range of their values, and a manifest tells none."""

from __future__ import annotations

from typing import Any

DECIDES = "a value of an input decides a size, and TensorRT would need a range of it"


class DecidingInputs:
    """The network's inputs that could become shape tensors, as TensorRT calls these: 0-d, or of one fixed axis."""

    def __init__(self) -> None:
        self._seen = 0
        self._could: list[Any] = []

    def are_new(self, network: Any) -> bool:
        """Whether the layers made since the last call have turned one into a shape tensor."""
        for index in range(self._seen, network.num_inputs):
            tensor = network.get_input(index)
            if len(tensor.shape) < 2 and -1 not in tuple(tensor.shape):
                self._could.append(tensor)
        self._seen = network.num_inputs
        could, self._could = self._could, [tensor for tensor in self._could if not tensor.is_shape_tensor]
        return len(could) != len(self._could)
