"""Values beyond float16's range, found by running torch with observers on the goldens.

What float16 cannot hold becomes infinite in an engine. So the layers that make or read such a value
stay in float32. The large negative numbers that mask attention are no such values: a softmax makes
0 of them, and of minus infinity too.
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
"""What a mask passes on its way to a softmax."""


@dataclass
class Extent:
    """The least and the greatest number that a tensor held; NaN where it held one."""

    floating: bool = False
    least: float = 0.0
    greatest: float = 0.0

    def __call__(self, x: torch.Tensor) -> None:
        if x.dtype in FLOATS and x.numel():
            self.floating = True
            low, high = (float(end) for end in torch.aminmax(x))
            # with NaN first, which stays
            self.least, self.greatest = min(low, self.least), max(high, self.greatest)

    @property
    def magnitude(self) -> float:
        """The greatest finite magnitude; 0 where the tensor held an infinity or NaN."""
        found = max(-self.least, self.greatest)
        return found if self.floating and math.isfinite(found) else 0.0


@dataclass(frozen=True)
class Beyond:
    """A value of the graph whose magnitude passes float16's range: its name, the values that are
    computed from it, and its greatest finite magnitude.
    """

    value: str
    readers: tuple[str, ...]
    greatest: float


def beyond_half(
    lowered: LoweredGraph, batches: Iterable[Sequence[torch.Tensor]]
) -> tuple[Beyond, ...]:
    """Each value outside loops and branches whose magnitude passes 65504 on the batches (tensors in
    the order of the graph's inputs), in program order.

    A value that is infinite or not a number in torch too is left out: no precision holds it.
    """
    graph = lowered.graph.copy()
    # a copy numbers its values anew, in the same order
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
    """The layers of a network that make or read the values, as patterns for keep_fp32, each
    once.
    """
    of = {value: layer for layer, value in named_values(network)}
    named = (name for one in found for name in (one.value, *one.readers))
    return tuple(dict.fromkeys(glob.escape(of[name]) for name in named if name in of))


def report(found: Sequence[Beyond], kept: Sequence[str]) -> str:
    """The warning that says which layers stay in float32, and why."""
    worst = max(found, key=lambda one: one.greatest)
    return (
        f"keep_fp32: auto keeps {len(kept)} layers in float32: values reach {worst.greatest:.3g}"
        f" (%{worst.value}), and float16 ends at {LIMIT:.0f}: {', '.join(kept)}"
    )


def spare(
    conversion: Conversion, batches: Iterable[Sequence[torch.Tensor]], keep_fp32: Sequence[str] = ()
) -> tuple[Conversion, tuple[str, ...]]:
    """(the conversion with the layers in float32 that float16 cannot hold, the warning that names
    them); the same and () where there are none, or the precision has no float16.

    `batches` are inputs of the conversion; `keep_fp32` are the patterns that it has already.
    """
    if precision.HALF.get(precision.rest(conversion.precision)) != torch.float16:
        return conversion, ()
    found = beyond_half(conversion.lowered, batches)
    kept = layers(conversion.network, found)
    if not kept:
        return conversion, ()
    return convert_again(conversion, (*keep_fp32, *kept)), (report(found, kept),)


def _is_mask(value: Value) -> bool:
    """Whether all that is computed from the value ends in a softmax."""
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
