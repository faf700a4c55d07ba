"""Overloads of operators on numbers, lists or dictionaries, from PyTorch's schema registry."""

from __future__ import annotations

from collections.abc import Callable

import torch

NUMBERS = frozenset(["int", "float", "bool", "number"])


def overloads(name: str, matches: Callable[[list[str]], bool]) -> list[str]:
    """The keys of an operator's overloads with matching argument types (in TorchScript's notation).

    Complex numbers never match.
    """
    keys = []
    for schema in torch._C._jit_get_schemas_for_operator(name):
        types = [str(argument.type) for argument in schema.arguments]
        if "complex" not in " ".join(types) and matches(types):
            key = str(schema.name)
            if schema.overload_name:
                key = f"{key}.{schema.overload_name}"
            keys.append(key)
    return keys


def numeric(name: str) -> list[str]:
    """Overloads whose arguments are all numbers."""
    return overloads(name, lambda types: NUMBERS.issuperset(types))


def of_list(name: str) -> list[str]:
    """Overloads that work on a list; those that compare tensors with one another are left out."""
    return overloads(
        name,
        lambda types: (
            bool(types) and types[0].startswith("List[") and types[1:2] != ["Tensor"]
        ),
    )


def of_dict(name: str) -> list[str]:
    """Overloads that work on a dictionary whose keys are numbers or strings."""
    return overloads(
        name,
        lambda types: (
            bool(types)
            and types[0].startswith("Dict[")
            and "Dict[Tensor" not in types[0]
        ),
    )
