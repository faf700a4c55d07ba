"""Values that are None before a loop and in each of its iterations."""

from __future__ import annotations

from builder.graph_types import Graph, Node, Value
from builder.lowering import ir
from builder.lowering.folding import propagate_constants
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.peel import peel

_IDENTITIES = ("aten::__is__", "aten::__isnot__")


@lowering_pass("fold-none-in-loops", touches=("prim::Loop",))
def fold_none_in_loops(graph: Graph, context: Context) -> None:
    """Replace what a loop carries by None, if it is None before the loop and each iteration that
    starts with None ends with None: then comparisons with None in the loop are constants. If each
    iteration sets it, move the first iteration before the loop, where the sizes of the inputs
    ensure that there is one.
    """
    changed = False
    for loop in ir.nodes_of(graph, "prim::Loop"):
        parameters = list(ir.first_block(loop).inputs())[1:]
        start = zip(ir.inputs(loop)[2:], parameters, strict=True)
        candidates = [
            index for index, (value, _) in enumerate(start) if ir.is_none(value)
        ]
        if not candidates:
            continue
        assumed = {parameters[index].unique() for index in candidates}
        returned = list(ir.first_block(loop).outputs())[1:]
        while rejected := [
            index for index in candidates if not _is_none(returned[index], assumed)
        ]:
            candidates = [index for index in candidates if index not in rejected]
            assumed = {parameters[index].unique() for index in candidates}
        for index in candidates:
            none = loop.inputsAt(index + 2)
            parameters[index].replaceAllUsesWith(none)
            loop.outputsAt(index).replaceAllUsesWith(none)
        changed = changed or bool(candidates)
    while changed:
        propagate_constants(graph)
        changed = ir.read_tuples(graph)  # an element may be None
    peel(graph, context)


@lowering_pass("remove-empty-updates", touches=("aten::update",))
def remove_empty_updates(graph: Graph, context: Context) -> None:
    """Remove `a.update(b)` where b is empty."""
    for node in ir.nodes_of(graph, "aten::update"):
        if _is_empty(node.inputsAt(1)):
            node.destroy()


def _is_empty(value: Value) -> bool:
    """Whether a dictionary has no items and is only read by `update`."""
    node = value.node()
    if node.kind() != "prim::DictConstruct" or node.inputsSize():
        return bool(ir.constant(value) == {})
    return all(
        use.user.kind() == "aten::update" and use.offset == 1 for use in value.uses()
    )


def _is_none(value: Value, assumed: set[int]) -> bool:
    """Whether a value is None if the values `assumed` are."""
    if ir.is_none(value) or value.unique() in assumed:
        return True
    node = value.node()
    if node.kind() == "prim::unchecked_cast":
        return _is_none(node.inputsAt(0), assumed)
    return node.kind() == "prim::If" and all(
        _is_none(end, assumed) for end in _possible_ends(value, assumed)
    )


def _possible_ends(value: Value, assumed: set[int]) -> list[Value]:
    """The values that an output of an if may have, without those of a branch that is not taken."""
    ends = ir.branch_ends(value)
    taken = _condition(value.node().inputsAt(0), assumed)
    if taken is None:
        return ends
    return [ends[0] if taken else ends[1]]


def _condition(value: Value, assumed: set[int]) -> bool | None:
    """A condition that depends on comparisons with None; None if it is not known."""
    node: Node = value.node()
    if isinstance(constant := ir.constant(value), bool):
        return constant
    if node.kind() in _IDENTITIES and all(_is_none(v, assumed) for v in node.inputs()):
        return node.kind() == "aten::__is__"
    if node.kind() == "aten::__not__":
        inner = _condition(node.inputsAt(0), assumed)
        return None if inner is None else not inner
    if node.kind() != "prim::If":
        return None
    known = {_condition(end, assumed) for end in _possible_ends(value, assumed)}
    return known.pop() if len(known) == 1 else None
