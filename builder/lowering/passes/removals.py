"""Remove operators that have no effect in inference without in-place writes, and exceptions.

An engine cannot raise exceptions, so a branch that raises is treated as not taken.
"""

from __future__ import annotations

from builder.graph_types import Block, Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.locations import source_location
from builder.lowering.passes import Context, lowering_pass

_DROPOUTS = tuple(
    f"aten::{name}"
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
)


@lowering_pass(
    "remove-dropout", touches=(*_DROPOUTS, *(f"{kind}_" for kind in _DROPOUTS))
)
def remove_dropout(graph: Graph, context: Context) -> None:
    """Remove all forms of dropout outside training. Dropout returns its input tensor itself, so
    this pass runs before functionalize.
    """
    for node in ir.nodes_of(graph, *_DROPOUTS, *(f"{kind}_" for kind in _DROPOUTS)):
        if ir.constant(node.inputsAt(2)) is False or ir.constant(node.inputsAt(1)) == 0:
            ir.bypass(node)


_SAME_TENSOR = tuple(
    f"aten::{name}"
    for name in (
        "detach",
        "detach_copy",
        "alias",
        "requires_grad_",
        "cuda",
        "cpu",
        "pin_memory",
    )
)


@lowering_pass("remove-contiguous", touches=("aten::contiguous",))
def remove_contiguous(graph: Graph, context: Context) -> None:
    """Remove contiguous: the engine chooses memory layouts, and views are reshapes at this
    point.
    """
    for node in ir.nodes_of(graph, "aten::contiguous"):
        ir.bypass(node)


@lowering_pass(
    "remove-clone", touches=("aten::clone", "aten::lift_fresh", "aten::lift_fresh_copy")
)
def remove_clone(graph: Graph, context: Context) -> None:
    """Remove clone: the graph has no in-place writes at this point."""
    for node in ir.nodes_of(
        graph, "aten::clone", "aten::lift_fresh", "aten::lift_fresh_copy"
    ):
        ir.bypass(node)


@lowering_pass("remove-detach", touches=_SAME_TENSOR)
def remove_detach(graph: Graph, context: Context) -> None:
    """Remove detach, alias and moves between devices: the graph has no gradients and only one
    device.
    """
    for node in ir.nodes_of(graph, *_SAME_TENSOR):
        ir.bypass(node)


_REFINEMENTS = (
    "prim::unchecked_cast",
    "aten::_unwrap_optional",
    "prim::profile",
    "prim::profile_ivalue",
    "prim::data",
)
_METADATA = "aten::_assert_tensor_metadata"


@lowering_pass("remove-guards", touches=(*_REFINEMENTS, _METADATA))
def remove_guards(graph: Graph, context: Context) -> None:
    """Remove guards that only refine types or check shapes: unchecked_cast to the type that a value
    already has, and assertions on metadata.
    """
    for node in ir.nodes_of(graph, *_REFINEMENTS):
        if node.inputsAt(0).type().str() == node.output().type().str():
            ir.bypass(node)
    for node in ir.nodes_of(graph, _METADATA):
        node.destroy()


# For each overload of `to`: the index of the dtype (None without one), and the indices of arguments
# that must be constant false.
_TO_DTYPE = {
    "aten::to.device": 2,
    "aten::to.dtype": 1,
    "aten::to.dtype_layout": 1,
    "aten::to.prim_Device": 2,
    "aten::to.prim_dtype": 1,
    "aten::to.prim_other": None,
}


@lowering_pass("unify-to", touches=("aten::to",))
def unify_to(graph: Graph, context: Context) -> None:
    """Write every form of `to` as `aten::to.dtype(x, dtype, False, False, None)`. A `to` that only
    names a device is removed.
    """
    shared = ir.Constants(graph)
    for node in ir.nodes_of(graph, "aten::to"):
        schema = ir.schema(node)
        name = ""
        if schema:
            name = f"{schema.name}.{schema.overload_name}"
        if name == "aten::to.other":
            emit = Emit(graph, node)
            dtype_of_other = emit.op("prim::dtype", node.inputsAt(1), type=ir.INT)
            _cast(graph, shared, node, dtype_of_other)
        elif name in _TO_DTYPE:
            at = _TO_DTYPE[name]
            dtype = None if at is None else node.inputsAt(at)
            if dtype is None or ir.is_none(dtype):
                ir.bypass(node)
            else:
                _cast(graph, shared, node, dtype)


def _cast(graph: Graph, shared: ir.Constants, node: Node, dtype: Value) -> None:
    emit = Emit(graph, node, shared=shared)
    arguments = (node.inputsAt(0), dtype, False, False, None)
    ir.replace(node, [emit.op("aten::to", *arguments)])


@lowering_pass("remove-full-slices", touches=("aten::slice",))
def remove_full_slices(graph: Graph, context: Context) -> None:
    """Remove a slice of a whole axis with step 1: `x[:, 0]` slices its first axis completely before
    it selects.
    """
    for node in ir.nodes_of(graph, "aten::slice"):
        whole = (
            node.inputsSize() == 5 and node.inputsAt(0).type().kind() == "TensorType"
        )
        if whole and _is_full_slice(*(value for value in ir.inputs(node)[2:])):
            ir.bypass(node)


def _is_full_slice(start: Value, end: Value, step: Value) -> bool:
    from_first = ir.is_none(start) or ir.constant(start) == 0
    to_last = ir.is_none(end) or ir.constant(end) == _INT_MAX
    return bool(from_first and to_last and ir.constant(step) == 1)


_INT_MAX = 2**63 - 1  # the scripting compiler's value for an open end
_VALUE_ASSERTIONS = (
    "aten::_assert_async",
    "aten::_assert_scalar",
    "aten::sym_constrain_range",
    "aten::sym_constrain_range_for_size",
)
_MESSAGES = ("aten::warn", "prim::Print")


@lowering_pass(
    "eliminate-exceptions",
    touches=("prim::RaiseException", *_VALUE_ASSERTIONS, *_MESSAGES),
)
def eliminate_exceptions(graph: Graph, context: Context) -> None:
    """Remove ifs in which one branch raises: the other branch replaces the if.

    Assertions and messages are removed, too. Inner ifs are processed first, so that nested guards
    disappear. A raise that every path reaches stays. A condition on the values of inputs is noted
    for a warning.
    """
    for node in reversed(ir.nodes_of(graph, "prim::If")):
        raising = [_raises(block) for block in node.blocks()]
        if raising.count(True) == 1:
            _note(node, context)
            ir.splice(node, list(node.blocks())[raising.index(False)])
    for node in ir.nodes_of(graph, *_VALUE_ASSERTIONS):
        _note(node, context)
        node.destroy()
    for node in ir.nodes_of(graph, *_MESSAGES):
        node.destroy()


def _note(node: Node, context: Context) -> None:
    """Note the source location of a condition that depends on the values of inputs."""
    condition = node.inputsAt(0)
    is_tensor = str(condition.type()) == "Tensor" and not ir.is_constant(condition)
    if is_tensor or ir.is_of_data(condition):
        context.unchecked.append(source_location(node))


def _raises(block: Block) -> bool:
    """Whether the block itself (not an if inside it) ends in an exception."""
    return any(node.kind() == "prim::RaiseException" for node in block.nodes())
