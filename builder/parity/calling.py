"""The original module called with an endpoint's tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from builder.manifest.spec import TensorSpec


def call(module: Any, specs: Sequence[TensorSpec], tensors: Sequence[torch.Tensor]) -> Any:
    """The module's answer. As in lowering the tensors are forward's arguments in order, a tuple
    takes as many as it has elements, an Optional argument takes one where a spec has its name, and
    everything else keeps its default.
    """
    schema = getattr(getattr(module, "forward", None), "schema", None)
    if schema is None:
        return module(*tensors)
    left = iter(tensors)
    named = {spec.name for spec in specs}
    try:
        given = {
            a.name: _argument(a.name, a.type, named, left)
            for a in schema.arguments[1:]
            if _is_given(a, named)
        }
    except StopIteration:
        return module(*tensors)
    return module(*tensors) if any(True for _ in left) else module(**given)


def _is_given(argument: Any, named: Collection[str | None]) -> bool:
    kind = argument.type.kind()
    return (
        kind in ("TensorType", "TupleType")
        or argument.name in named
        or not argument.has_default_value()
    )


def _argument(
    name: str, kind: Any, named: Collection[str | None], left: Iterator[torch.Tensor]
) -> Any:
    if kind.kind() == "TupleType":
        parts = enumerate(kind.elements())
        return tuple([_argument(f"{name}_{part}", element, named, left) for part, element in parts])
    if kind.kind() == "OptionalType":
        return _argument(name, kind.getElementType(), named, left) if name in named else None
    return next(left)
