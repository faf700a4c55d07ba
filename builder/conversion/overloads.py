"""PyTorch's own schema registry, asked for the overloads of an operator that take numbers, lists or
dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

NUMBERS = frozenset(["int", "float", "bool", "number"])


def overloads(name: str, fits: Callable[[list[str]], bool]) -> list[str]:
    """The keys of an operator's overloads whose argument types (as TorchScript writes them) fit.

    Complex numbers never do: a network has none.
    """
    keys = []
    for schema in torch._C._jit_get_schemas_for_operator(name):
        types = [str(argument.type) for argument in schema.arguments]
        if "complex" not in " ".join(types) and fits(types):
            keys.append(
                f"{schema.name}.{schema.overload_name}"
                if schema.overload_name
                else str(schema.name)
            )
    return keys


def numeric(name: str) -> list[str]:
    """Overloads whose arguments are all numbers."""
    return overloads(name, lambda types: NUMBERS.issuperset(types))


def of_list(name: str) -> list[str]:
    """Overloads that work on a list; those that compare tensors with one another are left out."""
    return overloads(
        name, lambda types: bool(types) and _is_list(types[0]) and types[1:2] != ["Tensor"]
    )


def of_dict(name: str) -> list[str]:
    """Overloads that work on a dictionary whose keys are numbers or strings."""
    return overloads(
        name,
        lambda types: (
            bool(types) and types[0].startswith("Dict[") and "Dict[Tensor" not in types[0]
        ),
    )


def _is_list(kind: str) -> bool:
    return kind.startswith("List[")
