"""Names a program's tensors by the structure of its arguments and results, like those of
TorchScript models (`state_0`, `state.hidden`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from builder.errors import LoweringError
from builder.names import join, served_name, unique_name


def input_names(program: torch.export.ExportedProgram) -> list[str]:
    """Return one name for each leaf of the arguments, positional ones first. The names are valid at
    an endpoint.
    """
    paths = input_paths(program)
    return _distinct(served_name(_joined(path), "input") for path in paths)


def signature(program: torch.export.ExportedProgram) -> Any:
    """Return the structure of the program's arguments (`in_spec`) and result (`out_spec`).

    ExportedProgram.call_spec creates a class each time.
    """
    for entry in program.module_call_graph:
        if entry.fqn == "":
            return entry.signature
    raise LoweringError("the program does not describe its own arguments")


def input_paths(program: torch.export.ExportedProgram) -> list[tuple[Any, ...]]:
    """Return the path of each leaf of the arguments, from the name of its argument."""
    spec = signature(program).in_spec
    names = list(signature(program).forward_arg_names or ())
    if len(set(names)) < len(names):
        raise LoweringError(
            f"two arguments of the program have the same name ({', '.join(names)})"
        )
    leaves = [object() for _ in range(spec.num_leaves)]
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    names += [f"input_{index}" for index in range(len(names), len(args))]
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    return [path for path, _ in pytree.tree_flatten_with_path(arguments)[0]]


def output_names(out_spec: Any) -> list[str]:
    """Return one name for each leaf of the result; a single tensor is `output`."""
    leaves = [object() for _ in range(out_spec.num_leaves)]
    result = pytree.tree_unflatten(leaves, out_spec)
    return _distinct(
        _joined(path) or "output"
        for path, _ in pytree.tree_flatten_with_path(result)[0]
    )


def _distinct(names: Iterable[str]) -> list[str]:
    """Make the names unique with a number suffix: `a_0` may be an argument and the first element of
    `a`.
    """
    distinct: dict[str, None] = {}
    for name in names:
        distinct[unique_name(name, distinct)] = None
    return list(distinct)


def _joined(path: Sequence[Any]) -> str:
    name = ""
    for key in path:
        name = join(name, _part(key))
    return name


def _part(key: Any) -> str | int:
    if isinstance(key, pytree.SequenceKey):
        return int(key.idx)
    if isinstance(key, pytree.GetAttrKey):
        return str(key.name)
    if isinstance(key, pytree.MappingKey):
        if type(key.key) is int and key.key >= 0:
            return key.key
        return str(key.key)
    raise LoweringError(
        f"the structure of forward's arguments has a key {key}, of an unknown kind"
    )
