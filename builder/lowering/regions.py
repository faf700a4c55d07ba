"""Annotations in forward that do not change the result: no_grad, profiler scopes, and forked
calls.
"""

from __future__ import annotations

from typing import Any

from builder.errors import LoweringError
from builder.graph_types import Graph, Node, Type
from builder.lowering import ir
from builder.lowering.local_attributes import replace_objects
from builder.lowering.locations import source_line

_HARMLESS = ("torch.autograd.grad_mode.", "torch.autograd.profiler.record_function")
_AUTOCAST = "remove autocast from the model: the manifest's `precision` sets the engine's precision"
_FIXES = dict.fromkeys(("torch.amp.", "torch.cuda.amp.", "torch.cpu.amp."), _AUTOCAST)
_FIX = "keep its content in variables, tuples or lists"


def make_plain(graph: Graph, *, keep_objects: bool = False) -> None:
    """Inline forked calls at the fork, and remove context managers such as `torch.no_grad()`.

    Raises LoweringError, with the line, for an object of any other TorchScript class, which a graph
    of tensors cannot represent. With `keep_objects` these stay, for torch to run, with autocast's
    casts made explicit.
    """
    if keep_objects and ir.nodes_of(graph, "prim::Enter"):
        # autocast's casts, which torch's interpreter does not add
        ir.C._jit_pass_autocast(graph)
    if ir.nodes_of(graph, "prim::fork"):
        _join(graph)
    replace_objects(graph)
    for creation in ir.nodes_of(graph, "prim::CreateObject"):
        name = creation.output().type().annotation_str.removeprefix("__torch__.")
        if not name.startswith(_HARMLESS):
            if keep_objects:
                continue
            raise LoweringError(
                f"an object of the class {name} is created, and a graph of tensors cannot "
                "represent it",
                where=source_line(creation),
                fix=_fix(name),
            )
        _drop(creation)


def _fix(class_name: str) -> str:
    for start, fix in _FIXES.items():
        if class_name.startswith(start):
            return fix
    return _FIX


def _join(graph: Graph) -> None:
    """Replace each fork by its body, and each future by its value, also in lists."""
    ir.C._jit_pass_inline_fork_wait(graph)
    ir.C._jit_pass_inline(graph)
    for node in ir.walk(graph):
        values = ir.outputs(node)
        for block in ir.blocks_of(node):
            values += block.inputs()
        for value in values:
            value.setType(_awaited(value.type()))
    for node in ir.nodes_of(graph, "aten::wait"):
        ir.bypass(node)


def _awaited(kind: Type) -> Any:
    if kind.kind() == "FutureType":
        return kind.getElementType()
    if kind.kind() == "ListType":
        return ir.C.ListType(_awaited(kind.getElementType()))
    return kind


def _drop(creation: Node) -> None:
    """Remove a context manager and all calls of it."""
    for user in [use.user for use in creation.output().uses()]:
        if user.kind() == "prim::GetAttr" or any(
            output.uses() for output in user.outputs()
        ):
            raise LoweringError(
                "the value of a context manager is read",
                where=source_line(user),
                fix="remove `as name` from the `with` statement",
            )
        user.destroy()
    creation.destroy()
