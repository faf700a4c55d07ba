"""Registers named tuples in the arguments and results of a program.

torch loads a program only after its types are registered. The file has the names of their fields.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Iterator
from typing import Any

from torch.utils import _pytree as pytree

_NAMED_TUPLE = "collections.namedtuple"


def register_named_tuples(program: dict[str, Any]) -> None:
    """Register a class with the same fields for each unregistered named tuple in the JSON of a
    program's archive.
    """
    module = program["graph_module"]
    fields = module.get("treespec_namedtuple_fields", {})
    for entry in module["module_call_graph"]:
        signature = entry.get("signature") or {}
        for spec in (signature.get("in_spec"), signature.get("out_spec")):
            for context in _contexts(json.loads(spec)[1]) if spec else ():
                _register(context, fields)


def _contexts(tree: Any) -> Iterator[Any]:
    if tree["type"] == _NAMED_TUPLE:
        yield json.loads(tree["context"])
    for child in tree["children_spec"]:
        yield from _contexts(child)


def _register(context: Any, fields: dict[str, Any]) -> None:
    registered: Any = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
    if not isinstance(context, str) or context in registered or context not in fields:
        return
    names = list(fields[context]["field_names"])
    if not all(name.isidentifier() for name in names):
        return
    named_tuple: Any = collections.namedtuple(context.rpartition(".")[2], names)  # type: ignore[misc]
    pytree._register_namedtuple(named_tuple, serialized_type_name=context)
