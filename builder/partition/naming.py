"""The names of boundary tensors."""

from __future__ import annotations

import re

from builder.lowering import LoweredGraph
from builder.names import unique_name


def tensor_name(value: str) -> str:
    """A value's debug name as a tensor name that is valid in Triton and file systems: `x.3` is
    `x_3`, `17` is `t17`.
    """
    name = re.sub(r"[^A-Za-z0-9_]", "_", value)
    if name[0].isdigit():
        return f"t{name}"
    return name


class TensorNames(dict[str, str]):
    """Tensor names by debug name: those of the model for its inputs and outputs, else unique names
    from the values, assigned on first use. `containers` name the layers of segments.
    """

    def __init__(self, lowered: LoweredGraph) -> None:
        super().__init__(
            (value.debugName(), name)
            for value, name in zip(lowered.graph.inputs(), lowered.inputs, strict=True)
        )
        self.update(
            (value.debugName(), name)
            for value, name in zip(
                lowered.graph.outputs(), lowered.outputs, strict=True
            )
        )
        self.used = set(self.values())
        self.containers = lowered.containers

    def __missing__(self, value: str) -> str:
        name = unique_name(tensor_name(value), self.used)
        self.used.add(name)
        self[value] = name
        return name
