"""Find values beyond float16's range, by running goldens and calibration data with torch and
observers.

Values that float16 cannot represent become infinite in an engine. So the layers that compute or
read such a value stay in float32. The large negative numbers that mask attention are an exception,
because a softmax maps both them and minus infinity to 0.
"""

from __future__ import annotations

import glob
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from builder.conversion import Conversion, convert_again, precision
from builder.engine import layers_by_tensor, named_values
from builder.graph_types import Graph, Value
from builder.lowering import LoweredGraph, ir
from builder.quantization import observing
from builder.quantization.products import PRODUCTS
from builder.quantization.statistics import FLOATS

LIMIT = torch.finfo(torch.float16).max
"""The largest finite float16, 65504."""
SOFTMAX = frozenset({"aten::softmax", "aten::_softmax", "aten::log_softmax"})
PROMOTING = frozenset(
    f"aten::{name}"
    for name in "mul div true_divide remainder fmod atan2 hypot addcmul addcdiv lerp".split()
)
"""Operators that convert an integer operand to the dtype of the other one, and whose result can be
small although that operand is large. The result of a sum is as large as the operand.
"""
SCALED = frozenset(f"aten::{name}" for name in "addmv baddbmm addbmm addr".split())
"""Operators that multiply a product by alpha, their fifth argument, before they add it."""
MASKING = frozenset(
    f"aten::{name}"
    for name in (
        "add masked_fill where expand expand_as unsqueeze squeeze reshape view slice select to"
        " permute transpose contiguous clone"
    ).split()
)
"""Operators between a mask and its softmax."""
SIZES = frozenset(f"aten::{name}" for name in ("size", "dim", "numel", "len"))
"""Operators that read no elements."""


@dataclass
class Extent:
    """The smallest and the largest finite element of a tensor over all runs. Integers count only if
    `integers` is set.
    """

    integers: bool = False
    least: float = 0.0
    greatest: float = 0.0

    def __call__(self, x: torch.Tensor) -> None:
        if not x.numel():
            return
        if x.dtype not in FLOATS and not (self.integers and _is_integer(x)):
            return
        low, high = (float(end) for end in torch.aminmax(x))
        if not (math.isfinite(low) and math.isfinite(high)):
            finite = x[torch.isfinite(x)]
            if not finite.numel():
                return
            low, high = (float(end) for end in torch.aminmax(finite))
        self.least, self.greatest = min(low, self.least), max(high, self.greatest)

    @property
    def magnitude(self) -> float:
        """The largest finite magnitude."""
        return max(-self.least, self.greatest)


@dataclass(frozen=True)
class Beyond:
    """A value of the graph whose magnitude exceeds float16's range: its name, the values that are
    computed from it, and its largest finite magnitude.
    """

    value: str
    readers: tuple[str, ...]
    greatest: float
    is_mask: bool = False
    """Whether it only masks a softmax, and is negative where it exceeds the range."""


def beyond_half(
    lowered: LoweredGraph, batches: Iterable[Sequence[torch.Tensor]]
) -> tuple[Beyond, ...]:
    """Each value whose finite elements exceed 65504 on the batches: inputs first, then in program
    order, then constant factors. Batches have tensors in the order of the graph's inputs.

    An integer counts if an operator of PROMOTING reads it. Elements that are infinite or NaN in
    torch are ignored, because no precision can represent them.
    """
    graph = lowered.graph.copy()
    names = _original_names(lowered.graph, graph)
    values = [
        value
        for value in observing.values(graph)
        if value.type().kind() == "TensorType"
    ]
    candidates = [
        (names[value.debugName()], _readers(value, names), Extent(_is_promoted(value)))
        for value in values
    ]
    masks = {names[value.debugName()] for value in values if _is_mask(value)}
    for number, value in enumerate(values):
        observing.watch_value(graph, value, number)
    observing.run(graph, [extent for *_, extent in candidates], batches)
    beyond = []
    for value, (name, readers, extent) in zip(values, candidates, strict=True):
        factor = _before_alpha(value)
        is_mask = name in masks and extent.greatest * factor <= LIMIT
        if extent.magnitude * factor > LIMIT:
            magnitude = extent.magnitude * factor
            beyond.append(Beyond(name, readers, magnitude, is_mask))
    return (*beyond, *_factors(lowered.graph))


def _original_names(original: Graph, copy: Graph) -> dict[str, str]:
    """The name in the original graph of each value of a copy, by its name in the copy."""
    # a copy renumbers its values, in the same order
    pairs = zip(observing.values(copy), observing.values(original), strict=True)
    return {value.debugName(): source.debugName() for value, source in pairs}


def layers(conversion: Conversion, values: Iterable[Beyond]) -> tuple[str, ...]:
    """The layers of a network that compute or read the values, as patterns for keep_fp32, without
    duplicates.
    """
    layer_of_value = _layer_of_value(conversion)
    names = (
        name
        for value in values
        if not value.is_mask
        for name in (value.value, *value.readers)
    )
    layers = dict.fromkeys(
        layer_of_value[name] for name in names if name in layer_of_value
    )
    return tuple(glob.escape(layer) for layer in layers)


def _layer_of_value(conversion: Conversion) -> dict[str, str]:
    """The layer that computes each value. The tensors of outputs have the names of the outputs, and
    integer results, such as those of argmax, have no float layer.
    """
    layer_of_tensor = dict(layers_by_tensor(conversion.network))
    tensors = conversion.tensors.items()
    layer_of_value = {
        value: layer_of_tensor[tensor.name]
        for value, tensor in tensors
        if tensor.name in layer_of_tensor
    }
    return layer_of_value | {
        value: layer for layer, value in named_values(conversion.network)
    }


def report(values: Sequence[Beyond], patterns: Sequence[str]) -> str:
    """The warning about the layers that stay in float32, and the reason."""
    large = (value for value in values if not value.is_mask)
    largest = max(large, key=lambda value: value.greatest)
    return (
        f"keep_fp32: auto keeps {len(patterns)} layers in float32: values reach"
        f" {largest.greatest:.3g} (%{largest.value}), and float16 ends at {LIMIT:.0f}:"
        f" {', '.join(patterns)}"
    )


def has_half(conversion: Conversion) -> bool:
    """Whether the precision of the conversion has float16."""
    return (
        precision.HALF.get(precision.unquantized(conversion.precision)) == torch.float16
    )


def with_layers_in_float32(
    conversion: Conversion, values: Sequence[Beyond], keep_fp32: Sequence[str] = ()
) -> tuple[Conversion, tuple[str, ...]]:
    """(the conversion with the layers of the values in float32, the warning about them). Masks of
    float32 are limited where they become half.

    Returns the same conversion and () if the network has no such layers. `keep_fp32` are the
    existing patterns of the conversion.
    """
    patterns = layers(conversion, values)
    masks = {value.value for value in values if value.is_mask}
    if not patterns and not any(_is_wide(conversion, name) for name in masks):
        return conversion, ()
    converted = convert_again(conversion, (*keep_fp32, *patterns), masks)
    return converted, (report(values, patterns),) if patterns else ()


def _is_wide(conversion: Conversion, name: str) -> bool:
    """Whether the network has the value in float32."""
    tensor = conversion.tensors.get(name)
    return tensor is not None and tensor.dtype.name == "FLOAT"


def _before_alpha(value: Value) -> float:
    """How much larger than its result the product in the value's operator is, about."""
    node = value.node()
    alpha = None
    if node.kind() in SCALED:
        alpha = ir.constant(node.inputsAt(4))
    return (
        1 / abs(alpha) if isinstance(alpha, int | float) and 0 < abs(alpha) < 1 else 1.0
    )


def _factors(graph: Graph) -> Iterator[Beyond]:
    """Constant factors, divisors and weights beyond float16. Conversion saturates a constant, which
    is right for the negative factor of a mask, but makes any other product wrong.
    """
    for node in ir.walk(graph):
        if node.kind() not in PROMOTING and node.kind() not in PRODUCTS:
            continue
        readers = tuple(value.debugName() for value in node.outputs())
        masks = _is_mask(node.output())
        for value in ir.inputs(node):
            extent = Extent(integers=True)
            constant = ir.constant(value)
            if isinstance(constant, int | float | torch.Tensor):
                extent(torch.as_tensor(constant))
            if extent.magnitude > LIMIT and not (masks and extent.greatest <= LIMIT):
                yield Beyond(value.debugName(), readers, extent.magnitude)


def _is_integer(x: torch.Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)


def _is_promoted(value: Value) -> bool:
    return any(use.user.kind() in PROMOTING for use in value.uses())


def _is_mask(value: Value) -> bool:
    """Whether all values that are computed from this value end in a softmax."""
    users = [use.user for use in value.uses() if use.user.kind() not in SIZES]
    for user in users:
        if user.kind() in SOFTMAX:
            continue
        if user.kind() not in MASKING or user.outputsSize() != 1:
            return False
        if not _is_mask(user.output()):
            return False
    return bool(users)


def _readers(value: Value, names: dict[str, str]) -> tuple[str, ...]:
    outputs = (output for use in value.uses() for output in use.user.outputs())
    known_names = (names.get(output.debugName()) for output in outputs)
    return tuple(dict.fromkeys(name for name in known_names if name))
