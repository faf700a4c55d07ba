"""The registry of evaluators: one function for each LayerType, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

# An evaluator takes the layer (as an instance of its own class) and its input values, None for a
# missing optional input. It returns the output value, or a tuple of them. Names are used instead of
# enum members, because a flavor need not have every LayerType.
Evaluator = Callable[..., Any]
EVALUATORS: dict[str, Evaluator] = {}

_F = TypeVar("_F", bound=Evaluator)


def evaluates(layer_type: str) -> Callable[[_F], _F]:
    """Register the decorated function as the evaluator of layers whose LayerType is named
    `layer_type`.
    """

    def register(function: _F) -> _F:
        if layer_type in EVALUATORS:
            raise ValueError(f"two evaluations of {layer_type}")
        EVALUATORS[layer_type] = function
        return function

    return register
