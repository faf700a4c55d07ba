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
        module.eval()
        yield
    finally:
        for child, flag in flags:
            child.training = flag


def frozen_graph(module: torch.jit.ScriptModule, method: str = "forward") -> tuple[Any, Any]:
    """The graph of `method` with attributes folded to constants, and its schema. Nothing is folded that changes
    numbers (no conv-bn folding).

    Raises LoweringError when the method keeps state in the module.
    """
    if method == "forward" and module._c._has_method("forward__0") and not module._c._has_method(method):
        method = "forward__0"  # a module with overloads, nn.LSTM among them; the first takes plain tensors
    if not module._c._has_method(method):
        raise LoweringError(
            f"the module has no method {method!r}", fix="name one of " + ", ".join(module._c._method_names())
        )
    with evaluating(module):
        frozen = torch._C._freeze_module(module._c, [method] if method != "forward" else [], True, False)
    graph = frozen._get_method(method).graph.copy()
    _refuse_state(graph)
    lower_attributes(graph, frozen)
    graph.eraseInput(0)
    return graph, module._c._get_method(method).schema


def lower_attributes(graph: Any, module: Any) -> None:
    """Turn the attribute reads that freezing left (where its alias analysis saw a possible write) into constants.

    A write to one is refused: `_refuse_state` for the attribute itself, functionalisation for what it holds.
    """
    owners = {next(iter(graph.inputs())).unique(): module}
    reads = []
    for node in ir.walk(graph):
        if node.kind() == "prim::GetAttr":
            found = owners[node.inputsAt(0).unique()].getattr(node.s("name"))
            reads.append(node)
            if isinstance(found, torch._C.ScriptModule | torch._C.ScriptObject):
                owners[node.output().unique()] = found
            else:
                node.output().replaceAllUsesWith(_constant(graph, node, found))
    for node in reversed(reads):
        node.destroy()


def _constant(graph: Any, node: Any, found: Any) -> Any:
    try:
        return ir.insert_constant(graph, found, node)
    except (RuntimeError, TypeError) as error:
        raise LoweringError(
            f"attribute {node.s('name')!r} holds a {node.output().type().str()}, which no constant can hold",
            where=ir.source_line(node),
        ) from error


def _refuse_state(graph: Any) -> None:
    """An attribute that survives freezing is written by forward: its value would differ from call to call."""
    for node in ir.nodes_of(graph, "prim::SetAttr"):
        raise LoweringError(
            f"forward keeps state in the module's attribute {node.s('name')!r}; a served model has none",
            where=ir.source_line(node),
            fix="pass the state in as an argument and return it",
        )
