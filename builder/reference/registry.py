"""Which function evaluates which layer: one entry for each LayerType, by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

# An evaluator takes the layer (typed as its own class) and its input values, None if an optional
# input is missing; it returns the output value, or a tuple of them. Names and not enum members: a
# flavor need not have every LayerType.
Evaluator = Callable[..., Any]
EVALUATORS: dict[str, Evaluator] = {}

_F = TypeVar("_F", bound=Evaluator)


def evaluates(layer_type: str) -> Callable[[_F], _F]:
    """Register the decorated function as the evaluation of layers whose LayerType is called
    `layer_type`.
    """

    def register(function: _F) -> _F:
        if layer_type in EVALUATORS:
            raise ValueError(f"two evaluations of {layer_type}")
        EVALUATORS[layer_type] = function
        return function

    return register
