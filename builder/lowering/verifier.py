"""After every pass: the graph is sound, the pass kept its promises, and nothing lost its place in the source."""

from __future__ import annotations

from typing import Any

from builder.errors import LoweringError
from builder.lowering import ir
from builder.lowering.passes import Pass


def interface(graph: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The types of the graph's inputs and outputs as text."""
    return tuple(v.type().str() for v in graph.inputs()), tuple(v.type().str() for v in graph.outputs())


def verify(graph: Any, step: Pass, before: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    """Raise a LoweringError that names the pass when it broke the graph, its interface, its promise or the source
    ranges.
    """
    try:
        graph.lint()
    except RuntimeError as error:
        raise _broken(step, f"the graph does not lint: {error}") from error
    if not step.changes_interface and _kinds(interface(graph)) != _kinds(before):
        raise _broken(step, f"inputs or outputs changed from {before} to {interface(graph)}")
    for kind in step.removes:
        if left := graph.findNode(kind, True):
            raise _broken(step, f"{kind} is left", where=ir.source_line(left))


def _kinds(types: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[list[str], list[str]]:
    """Tensor types without shapes: a pass may learn a shape, or forget one."""
    return tuple([_kind(text) for text in side] for side in types)  # type: ignore[return-value]


def _kind(text: str) -> str:
    names = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
    return "Tensor" if text == "Tensor" or text.split("(")[0] in names else text


def _broken(step: Pass, what: str, where: str | None = None) -> LoweringError:
    return LoweringError(f"pass {step.name} is defective: {what}", where=where, fix="report it with the model file")
