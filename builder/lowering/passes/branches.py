"""Replace ifs on sizes by one computation if their branches slice, pad or compute element by
element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from builder.analysis import Facts
from builder.graph_types import Block, Graph, Node, Value
from builder.lowering import ir
from builder.lowering.emit import Emit
from builder.lowering.passes import Context, lowering_pass
from builder.lowering.passes.dtypes import bottom_up, input_facts
from builder.reachable import reachable

_SIZES = frozenset(f"aten::{name}" for name in ("size", "dim", "numel", "len"))
_ARITHMETIC = frozenset(
    "aten::add aten::sub aten::mul aten::neg aten::lt aten::gt aten::le aten::ge aten::eq aten::ne"
    " aten::__not__ aten::__and__ aten::__or__ aten::Bool aten::Int aten::Float prim::min prim::max"
    " prim::Constant prim::ListConstruct".split()
)
"""Operators on numbers that never raise."""
_DIVISIONS = frozenset(("aten::floordiv", "aten::remainder"))
_ELEMENTWISE = frozenset(
    f"aten::{name}"
    for name in (
        "relu relu6 abs neg sigmoid tanh exp sin cos erf floor ceil gelu silu elu leaky_relu"
        " hardtanh clamp clamp_min clamp_max softplus add sub mul div"
    ).split()
)
"""Operators that return the dtype and shape of a floating-point input if their other arguments are
numbers.
"""
_NUMBERS = ("IntType", "FloatType", "BoolType")
_LAST = 2**63 - 1


@lowering_pass("select-by-size", touches=("prim::If",))
def select_by_size(graph: Graph, context: Context) -> None:
    """Compute both branches of an if on sizes, and select arguments or results by the condition:
    `if n > 5: x = x[:, :5]` is `x[:, :5 if n > 5 else n]`, and a pad has size 0 on the other path.

    TensorRT for RTX cannot build conditionals whose branches return different shapes, nor nested
    conditionals. Only slices with step 1, constant pads and element-wise operators are rewritten.
    """
    facts = input_facts(graph, context)
    for node in bottom_up(graph):
        facts.learn(node)
        if _is_elementwise(node, facts):
            operand = node.inputsAt(0)
            facts.know(node.output(), facts.dtype(operand), facts.rank(operand))
        if (
            node.kind() == "prim::If"
            and _depends_on_sizes(node.inputsAt(0))
            and not ir.is_kept(node)
        ):
            _rewrite(graph, node, facts)


def _depends_on_sizes(value: Value) -> bool:
    """Whether a number depends on sizes only."""

    def operands(value: Value) -> list[Value]:
        node = value.node()
        if node.kind() in _SIZES:
            return []
        ends = ir.branch_ends(value) if node.kind() == "prim::If" else []
        return [*node.inputs(), *ends]

    return all(map(_is_of_sizes, reachable([value], operands)))


def _is_of_sizes(value: Value) -> bool:
    """Whether a number is a size or a constant, or is computed from other numbers."""
    kind = value.node().kind()
    if kind in _SIZES or kind in ("prim::Constant", "prim::If"):
        return True
    return kind in _ARITHMETIC | _DIVISIONS and value.type().kind() in _NUMBERS


def _rewrite(graph: Graph, node: Node, facts: Facts) -> None:
    """Replace the if, if both of its branches may be computed."""
    blocks = list(node.blocks())
    tensors = any(value.type().kind() == "TensorType" for value in node.outputs())
    nodes = [inner for block in blocks for inner in block.nodes()]
    if not tensors or not all(_is_safe(inner, facts) for inner in nodes):
        return
    merge = _Merge(Emit(graph, node), node.inputsAt(0), facts)
    pairs = list(zip(*(block.outputs() for block in blocks), strict=True))
    computations = [merge.computation(yes, no, blocks) for yes, no in pairs]
    if all(computations):
        merge.hoist(blocks)
        ir.replace(node, [computation() for computation in computations if computation])


def _is_safe(node: Node, facts: Facts) -> bool:
    """Whether a node of a branch may be computed if the branch is not taken."""
    kind = node.kind()
    if ir.is_kept(node):
        return False
    if kind == "prim::If":
        numbers = all(value.type().kind() in _NUMBERS for value in node.outputs())
        inner = (child for block in node.blocks() for child in block.nodes())
        return numbers and all(_is_safe(child, facts) for child in inner)
    if kind in _DIVISIONS:
        return bool(ir.constant(node.inputsAt(1)))
    if _makes_tensor(node):
        return _is_movement(node) or _is_elementwise(node, facts) or _is_selection(node)
    if kind in _SIZES:
        return not _reads_a_pad(node.inputsAt(0))
    return kind in _ARITHMETIC


def _reads_a_pad(value: Value) -> bool:
    """Whether a tensor was padded: a negative pad raises if it exceeds the axis."""
    node = value.node()
    while _makes_tensor(node) and node.inputsSize():
        if node.kind() == "aten::constant_pad_nd":
            return True
        node = node.inputsAt(0).node()
    return False


def _makes_tensor(node: Node) -> bool:
    return bool(node.outputsSize() == 1 and node.output().type().kind() == "TensorType")


def _is_movement(node: Node) -> bool:
    """Whether a node slices or pads, with arguments whose neutral values are known."""
    if node.kind() == "aten::slice":
        return bool(node.inputsSize() == 5 and ir.constant(node.inputsAt(4)) == 1)
    return (
        node.kind() == "aten::constant_pad_nd"
        and ir.list_items(node.inputsAt(1)) is not None
    )


def _is_selection(node: Node) -> bool:
    """Whether this pass created the node from an inner if: `where` of a number, or the flag that it
    reads.
    """
    if node.kind() == "prim::NumToTensor":
        return True
    return bool(
        node.kind() == "aten::where"
        and node.inputsSize() == 3
        and node.inputsAt(0).node().kind() == "prim::NumToTensor"
    )


def _is_elementwise(node: Node, facts: Facts) -> bool:
    if (
        node.kind() not in _ELEMENTWISE
        or node.inputsAt(0).type().kind() != "TensorType"
    ):
        return False
    arguments = list(node.inputs())[1:]
    dtype = facts.dtype(node.inputsAt(0))
    are_numbers = all(
        value.type().kind() in (*_NUMBERS, "NoneType", "StringType")
        for value in arguments
    )
    return are_numbers and dtype is not None and dtype.is_floating_point


@dataclass
class _Merge:
    """Merges the branches of one if. New nodes are inserted before it. `condition` is its
    condition.
    """

    emit: Emit
    condition: Any
    facts: Facts

    def computation(
        self, yes: Value, no: Value, blocks: Sequence[Block]
    ) -> Callable[[], Any] | None:
        """A function that computes an output of the if from its values in both hoisted branches, or
        None.
        """
        if yes.type().kind() in _NUMBERS:
            return lambda: self.select(yes, no)
        if yes.type().kind() != "TensorType":
            return None
        if yes.debugName() == no.debugName():
            return lambda: yes
        (roots, path), (other_roots, other_path) = map(_path, (yes, no), blocks)
        if len(roots | other_roots) != 1:
            return None
        (root,) = (roots | other_roots).values()
        if len(path) == len(other_path) == 1 and _have_one_form(path[0], other_path[0]):
            return lambda: self._one_call(path[0], other_path[0])
        if not any(map(_is_movement, (*path, *other_path))):
            return lambda: self._where(yes, no)

        def both() -> Value:
            guarded = self._guarded(path, root, root, condition=True)
            return self._guarded(other_path, root, guarded, condition=False)

        return both

    def hoist(self, blocks: Sequence[Block]) -> None:
        """Move the nodes of the branches before the if. Slices and element-wise operators never
        raise, and unguarded pads are not read.
        """
        for block in blocks:
            for node in list(block.nodes()):
                node.moveBefore(self.emit.at)

    def select(self, yes: Value, no: Value) -> Value:
        """`yes if condition else no` of two numbers."""
        if yes.debugName() == no.debugName() or _are_equal(yes, no):
            return yes
        chosen = ir.insert(
            self.emit.graph, "prim::If", [self.condition], self.emit.at, [yes.type()]
        )
        for value in (yes, no):
            chosen.addBlock().registerOutput(value)
        return chosen.output()

    def _where(self, yes: Value, no: Value) -> Value:
        flag = self.emit.op("prim::NumToTensor", self.condition)
        return self._known_as(yes, self.emit.op("aten::where", flag, yes, no))

    def _one_call(self, yes: Node, no: Node) -> Value:
        """One call with selected numbers."""
        pairs = zip(yes.inputs(), no.inputs(), strict=True)
        return self._call(yes, [self._argument(*pair) for pair in pairs])

    def _argument(self, yes: Value, no: Value) -> Value:
        if yes.type().kind() in _NUMBERS:
            return self.select(yes, no)
        items = [self._values(value) for value in (yes, no)]
        if yes.type().kind() == "ListType":
            chosen = [self.select(*pair) for pair in zip(*items, strict=True)]
            return self.emit.list(chosen, ir.INT)
        return yes

    def _values(self, value: Value) -> list[Value]:
        """The elements of a list as values."""
        items = None
        if value.type().kind() == "ListType":
            items = ir.list_items(value)
        return [
            self.emit.constant(item) if isinstance(item, int) else item
            for item in items or ()
        ]

    def _guarded(
        self, path: Sequence[Node], root: Value, x: Value, *, condition: bool
    ) -> Value:
        """The calls of one branch with `x` as input instead of `root`. They return `x` itself if
        the condition is not `taken`.
        """
        replacements = {root.debugName(): x}
        for node in path:
            if _is_selection(node):
                arguments = [
                    replacements.get(value.debugName(), value)
                    for value in node.inputs()
                ]
                x = self._call(node, arguments)
            else:
                x = self._guard(
                    node, replacements[node.inputsAt(0).debugName()], condition
                )
            replacements[node.output().debugName()] = x
        return x

    def _guard(self, node: Node, x: Value, condition: bool) -> Value:
        arguments = list(node.inputs())[1:]

        def pick(value: Value, neutral: Value) -> Value:
            if condition:
                return self.select(value, neutral)
            return self.select(neutral, value)

        if node.kind() == "aten::slice":
            dim, start, end, step = arguments
            size = self.emit.op("aten::size", x, dim, type=ir.INT)
            zero = self.emit.constant(0)
            begin = zero
            if not ir.is_none(start):
                begin = pick(start, zero)
            stop = size if _is_open(end) else pick(end, size)
            return self._call(node, [x, dim, begin, stop, step])
        if node.kind() == "aten::constant_pad_nd":
            zero = self.emit.constant(0)
            amounts = [pick(value, zero) for value in self._values(arguments[0])]
            return self._call(node, [x, self.emit.list(amounts, ir.INT), arguments[1]])
        result = self._call(node, [x, *arguments])
        if condition:
            return self._where(result, x)
        return self._where(x, result)

    def _call(self, node: Node, arguments: Sequence[Value]) -> Value:
        """The node's operator on other arguments."""
        result = Emit(self.emit.graph, self.emit.at, node).op(node.kind(), *arguments)
        return self._known_as(node.output(), result)

    def _known_as(self, like: Value, result: Value) -> Value:
        """`result`, noted with the dtype and rank of `like`."""
        self.facts.know(result, self.facts.dtype(like), self.facts.rank(like))
        return result


def _path(value: Value, block: Block) -> tuple[dict[str, Any], list[Any]]:
    """The outside tensors from which a branch computes a value, by name, and the nodes that compute
    it, in order.
    """
    needed: dict[str, Any] = {value.debugName(): value}
    path: list[Node] = []
    for node in reversed(list(block.nodes())):
        if _makes_tensor(node) and needed.pop(node.output().debugName(), None):
            path.insert(0, node)
            tensors = (
                operand
                for operand in node.inputs()
                if operand.type().kind() == "TensorType"
            )
            needed |= {operand.debugName(): operand for operand in tensors}
    return needed, path


def _have_one_form(yes: Node, no: Node) -> bool:
    """Whether two calls differ only in numbers."""
    return (
        yes.kind() == no.kind()
        and yes.inputsSize() == no.inputsSize()
        and all(map(_are_alike, _after_first(yes), _after_first(no)))
    )


def _after_first(node: Node) -> Iterator[Any]:
    return iter(list(node.inputs())[1:])


def _are_alike(yes: Value, no: Value) -> bool:
    kind = yes.type().kind()
    if kind != no.type().kind():
        return False
    if kind == "ListType":
        return len(ir.list_items(yes) or ()) == len(ir.list_items(no) or ())
    return kind in _NUMBERS or _are_equal(yes, no)


def _are_equal(yes: Value, no: Value) -> bool:
    if yes.debugName() == no.debugName():
        return True
    if not (ir.is_constant(yes) and ir.is_constant(no)):
        return False
    first = yes.toIValue()
    second = no.toIValue()
    return type(first) is type(second) and first == second


def _is_open(end: Value) -> bool:
    """Whether a slice extends to the end of its axis."""
    return ir.is_none(end) or ir.constant(end) == _LAST
