"""Find values beyond float16's range, by running the goldens with torch and observers.

Values that float16 cannot represent become infinite in an engine. So the layers that compute or
read such a value stay in float32. The large negative numbers that mask attention are an exception,
because a softmax maps both them and minus infinity to 0.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from builder.conversion import Conversion, convert_again, precision
from builder.engine import INetworkDefinition, named_values
from builder.graph_types import Value
from builder.lowering import LoweredGraph
from builder.quantization import observing
from builder.quantization.statistics import FLOATS

LIMIT = torch.finfo(torch.float16).max
"""65504."""


SOFTMAX = frozenset({"aten::softmax", "aten::_softmax", "aten::log_softmax"})
MASKING = frozenset(
    f"aten::{name}"
    for name in (
        "add masked_fill where expand expand_as unsqueeze squeeze reshape view slice select to"
        " permute transpose contiguous clone"
    ).split()
)
"""Operators between a mask and its softmax."""


@dataclass
class Extent:
    """The smallest and the largest element of a tensor over all runs; NaN if any
    element was NaN.
    """

    floating: bool = False
    least: float = 0.0
    greatest: float = 0.0

    def __call__(self, x: torch.Tensor) -> None:
        if x.dtype in FLOATS and x.numel():
            self.floating = True
            low, high = (float(end) for end in torch.aminmax(x))
            # NaN comes first, so that it is kept
            self.least, self.greatest = min(low, self.least), max(high, self.greatest)

    @property
    def magnitude(self) -> float:
        """The largest finite magnitude; 0 if the tensor had an infinity or NaN."""
        found = max(-self.least, self.greatest)
        return found if self.floating and math.isfinite(found) else 0.0


@dataclass(frozen=True)
class Beyond:
    """A value of the graph whose magnitude exceeds float16's range: its name, the values that are
    computed from it, and its largest finite magnitude.
    """

    value: str
    readers: tuple[str, ...]
    greatest: float


def beyond_half(
    lowered: LoweredGraph, batches: Iterable[Sequence[torch.Tensor]]
) -> tuple[Beyond, ...]:
    """Each value outside loops and branches whose magnitude exceeds 65504 on the batches, in
    program order. Batches have tensors in the order of the graph's inputs.

    Values that are infinite or NaN in torch are excluded, because no precision can represent them.
    """
    graph = lowered.graph.copy()
    # a copy renumbers its values, in the same order
    own = [value.debugName() for node in lowered.graph.nodes() for value in node.outputs()]
    copied = [value.debugName() for node in graph.nodes() for value in node.outputs()]
    names = dict(zip(copied, own, strict=True))
    values = [
        value
        for node in graph.nodes()
        for value in node.outputs()
        if node.kind() != "prim::Constant" and value.type().kind() == "TensorType"
    ]
    found = [
        (value, names[value.debugName()], _readers(value, names), Extent()) for value in values
    ]
    masks = {name for value, name, *_ in found if _is_mask(value)}
    for number, value in enumerate(values):
        observing.watch_value(graph, value, number)
    observing.run(graph, [seen for *_, seen in found], batches)
    return tuple(
        Beyond(name, readers, seen.magnitude)
        for _, name, readers, seen in found
        if seen.magnitude > LIMIT and not (name in masks and seen.greatest <= LIMIT)
    )


def layers(network: INetworkDefinition, found: Iterable[Beyond]) -> tuple[str, ...]:
    """The layers of a network that compute or read the values, as patterns for keep_fp32, without
    duplicates.
    """
    of = {value: layer for layer, value in named_values(network)}
    named = (name for one in found for name in (one.value, *one.readers))
    return tuple(dict.fromkeys(glob.escape(of[name]) for name in named if name in of))


def report(found: Sequence[Beyond], kept: Sequence[str]) -> str:
    """The warning about the layers that stay in float32, and the reason."""
    largest = max(found, key=lambda one: one.greatest)
    return (
        f"keep_fp32: auto keeps {len(kept)} layers in float32: values reach {largest.greatest:.3g}"
        f" (%{largest.value}), and float16 ends at {LIMIT:.0f}: {', '.join(kept)}"
    )


def spare(
    conversion: Conversion, batches: Iterable[Sequence[torch.Tensor]], keep_fp32: Sequence[str] = ()
) -> tuple[Conversion, tuple[str, ...]]:
    """(the conversion with overflowing layers in float32, the warning about them).

    Returns the same conversion and () if there are none, or the precision has no float16. `batches`
    are inputs of the conversion; `keep_fp32` are its existing patterns.
    """
    if precision.HALF.get(precision.rest(conversion.precision)) != torch.float16:
        return conversion, ()
    found = beyond_half(conversion.lowered, batches)
    kept = layers(conversion.network, found)
    if not kept:
        return conversion, ()
    return convert_again(conversion, (*keep_fp32, *kept)), (report(found, kept),)


def _is_mask(value: Value) -> bool:
    """Whether all values that are computed from this value end in a softmax."""
    users = [use.user for use in value.uses()]
    return bool(users) and all(
        user.kind() in SOFTMAX
        or (user.kind() in MASKING and user.outputsSize() == 1 and _is_mask(user.output()))
        for user in users
    )


def _readers(value: Value, names: dict[str, str]) -> tuple[str, ...]:
    made = (output for use in value.uses() for output in use.user.outputs())
    found = (names.get(output.debugName()) for output in made)
    return tuple(dict.fromkeys(name for name in found if name))
