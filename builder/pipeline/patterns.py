"""Name patterns such as keep_fp32: the names that they match, and patterns without a match."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from builder import lowering, manifest
from builder.manifest import ModelSpec

if TYPE_CHECKING:
    from builder.conversion import Conversion
    from builder.lowering import LoweredGraph


def layer_names(conversions: Iterable[Conversion]) -> Iterator[str]:
    """The name of each node's first layer, in program order, for keep_fp32."""
    yielded: set[str] = set()
    for conversion in conversions:
        network = conversion.network
        for index in range(network.num_layers):
            name = re.sub(r"(_\d+)\.\d+$", r"\1", network.get_layer(index).name)
            if "::" in name and name not in yielded:
                yielded.add(name)
                yield name


def unmatched(spec: ModelSpec, converted: Any) -> Iterator[str]:
    """A warning for patterns of keep_fp32 that match no layer of the conversion. Most
    likely they are misspelled.
    """
    conversions = getattr(converted, "conversions", (converted,))
    names = list(
        layer_names(conversion for conversion in conversions if conversion is not None)
    )
    if missed := idle(spec.keep_fp32, names):
        hints = (_suggestion(pattern, names) for pattern in missed)
        near = next((hint for hint in hints if hint), "")
        yield (
            f"keep_fp32 names no layer of this model: {', '.join(missed)} ({near}`trt-build"
            " inspect` prints the names)"
        )


def _suggestion(pattern: str, names: Sequence[str]) -> str:
    """`did you mean 'layers.2.*'? ` where the layers of a module have a similar pattern."""
    known: dict[str, None] = {}
    for name in names:
        module, _, layer = name.rpartition("/")
        parts = module.split(".") if module else []
        known |= dict.fromkeys(
            f"{'.'.join(parts[:end])}.*" for end in range(1, len(parts))
        )
        known |= dict.fromkeys([f"{module}/*", name] if layer and module else [name])
    meant = manifest.did_you_mean(pattern, known, otherwise_list=False)
    return f"{meant} " if meant else ""


def idle(patterns: Sequence[str], names: Sequence[str]) -> list[str]:
    """The patterns (fnmatch) that match none of the names."""
    return [pattern for pattern in patterns if not fnmatch.filter(names, pattern)]


def unknown_operators(spec: ModelSpec, lowered: LoweredGraph) -> Iterator[str]:
    """A warning for patterns of fallback.ops that match no operator: they are misspelled, or
    lowering replaced the operator.
    """
    if not spec.fallback.ops:
        return
    kinds = sorted({node.kind() for node in lowering.ir.walk(lowered.graph)})
    for pattern in idle(spec.fallback.ops, kinds):
        meant = manifest.did_you_mean(pattern, kinds, otherwise_list=False)
        if not meant:
            meant = "`trt-build lower` shows the lowered graph"
        yield f"fallback.ops names no operator of the lowered graph: {pattern} ({meant})"
