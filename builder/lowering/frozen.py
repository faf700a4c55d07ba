"""From a module to a graph without `self`: evaluation mode, freezing, and attribute reads turned into constants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from builder.errors import LoweringError
from builder.lowering import ir


@contextmanager
def evaluating(module: torch.jit.ScriptModule) -> Iterator[None]:
    """The module in evaluation mode; every submodule's own flag is put back afterwards."""
    flags = [(child, child.training) for child in module.modules()]
    try:
        yield module.eval() and None
    finally:
        for child, flag in flags:
            child.training = flag


def frozen_graph(module: torch.jit.ScriptModule, method: str = "forward") -> tuple[Any, Any]:
    """The graph of `method` with attributes folded to constants, and its schema. Nothing is folded that changes
    numbers (no conv-bn folding).

    Raises LoweringError when the method keeps state in the module.
    """
    if not module._c._has_method(method):
        raise LoweringError(
            f"the module has no method {method!r}", fix="name one of " + ", ".join(module._c._method_names())
        )
    with evaluating(module):
        frozen = torch._C._freeze_module(module._c, [method] if method != "forward" else [], True, False)
    graph = frozen._get_method(method).graph.copy()
    _refuse_state(graph)
    graph.eraseInput(0)
    return graph, module._c._get_method(method).schema


def _refuse_state(graph: Any) -> None:
    """An attribute that survives freezing is written by forward: its value would differ from call to call."""
    for node in ir.nodes_of(graph, "prim::SetAttr", "prim::GetAttr"):
        raise LoweringError(
            f"forward keeps state in the module's attribute {node.s('name')!r}; a served model has none",
            where=ir.source_line(node),
            fix="pass the state in as an argument and return it",
        )
