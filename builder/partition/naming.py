"""What tensors that cross are called."""

from __future__ import annotations

import itertools
import re

from builder.lowering import LoweredGraph


def border_name(value: str) -> str:
    """A value's debug name as a tensor name that Triton and file systems take: `x.3` is `x_3`, `17`
    is `t17`.
    """
    name = re.sub(r"[^A-Za-z0-9_]", "_", value)
    return f"t{name}" if name[0].isdigit() else name


class TensorNames(dict[str, str]):
    """By a value's debug name its tensor name: the model's own for its inputs and outputs, else one
    after the value's that nothing else has, given on first use. `containers` name the
    layers that pieces are made of.
    """

    def __init__(self, lowered: LoweredGraph) -> None:
        super().__init__(
            (v.debugName(), n) for v, n in zip(lowered.graph.inputs(), lowered.inputs, strict=True)
        )
        self.update(
            (v.debugName(), n)
            for v, n in zip(lowered.graph.outputs(), lowered.outputs, strict=True)
        )
        self.taken = set(self.values())
        self.containers = lowered.containers

    def __missing__(self, value: str) -> str:
        stem = border_name(value)
        candidates = itertools.chain([stem], (f"{stem}_{count}" for count in itertools.count(2)))
        name = next(name for name in candidates if name not in self.taken)
        self.taken.add(name)
        self[value] = name
        return name
