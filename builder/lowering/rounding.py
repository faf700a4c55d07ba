"""Which outputs of a graph depend on results that its own operators round to 16 bits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from builder.analysis import Facts
from builder.graph_types import Graph, Node, NodeList, Value
from builder.lowering import ir
from builder.manifest import TensorSpec

_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}
_COARSEST = ("bfloat16", "float16")
_MOVES = frozenset(
    f"aten::{name}"
    for name in """
        view reshape flatten unflatten permute transpose t slice select narrow unsqueeze squeeze
        expand expand_as contiguous clone detach cat stack split split_with_sizes chunk unbind
        gather index_select flip roll repeat to _to_copy type_as __getitem__
    """.split()
)
"""Operators that copy elements, or cast them: the result is exact if the inputs are."""


def rounded_outputs(graph: Graph, inputs: Sequence[TensorSpec]) -> list[str | None]:
    """For each output, the coarsest 16-bit dtype to which an operator rounds a result that the
    output depends on; None if there is none. `inputs` describe the graph's inputs.

    A cast of an input is exact in every library, and so is a copy of its elements. A result of
    unknown dtype, such as an element of a list, may have that of an operand.
    """
    walk = _Walk()
    for value, spec in zip(graph.inputs(), inputs, strict=False):
        walk.facts.know(value, getattr(torch, spec.dtype), len(spec.shape))
        walk.exact.add(value.unique())
    walk.block(graph)
    return [walk.rounded.get(value.unique()) for value in graph.outputs()]


class _Walk:
    def __init__(self) -> None:
        self.facts = Facts()
        self.exact: set[int] = set()
        """Values that no operator has rounded, by number."""
        self.rounded: dict[int, str] = {}
        """By the number of a value, the coarsest dtype that it was rounded to."""
        self.unknown: dict[int, str] = {}
        """By the number of a value of unknown dtype, the coarsest dtype that it may have."""

    def block(self, block: NodeList) -> None:
        for node in block.nodes():
            if node.kind() == "prim::Loop":
                self._loop(node)
                continue
            for inner in node.blocks():
                self.block(inner)
            self.facts.learn(node)
            if node.kind() == "prim::If":
                for inner in node.blocks():
                    self._join(node.outputs(), inner.outputs())
            else:
                self._operator(node)

    def _loop(self, node: Node) -> None:
        """A result of an iteration reaches the next one. The dtypes are unknown, because an
        iteration may change them.
        """
        _, _, *first = node.inputs()
        body = ir.first_block(node)
        _, *carried = body.inputs()
        _, *last = body.outputs()
        self._join(carried, first)
        for _ in carried:
            self.block(body)
            self._join(carried, last)
        self.block(body)
        self._join(node.outputs(), last)
        self._join(node.outputs(), first)

    def _join(self, targets: Iterable[Value], sources: Iterable[Value]) -> None:
        for target, source in zip(targets, sources, strict=True):
            self._add(target, self.rounded.get(source.unique()))
            self._learn_dtype(target, [source])

    def _add(self, value: Value, dtype: str | None) -> None:
        _keep_coarsest(self.rounded, value, [dtype])

    def _learn_dtype(self, value: Value, sources: Sequence[Value]) -> None:
        """Record that a tensor, or a list of them, may have the dtype of one of these."""
        if self.facts.dtype(value) is None and _holds_tensors(value):
            _keep_coarsest(self.unknown, value, map(self._dtype, sources))

    def _dtype(self, value: Value) -> str | None:
        """The dtype of 16 bits that a value has or may have."""
        dtype = self.facts.dtype(value)
        return _DTYPES.get(dtype) if dtype else self.unknown.get(value.unique())

    def _operator(self, node: Node) -> None:
        sources = ir.inputs(node)
        copies = node.kind() in _MOVES or node.kind().startswith("prim::")
        exact = copies and all(map(self._is_exact, sources))
        for value in node.outputs():
            self._learn_dtype(value, sources)
            if exact:
                self.exact.add(value.unique())
            else:
                self._add(value, self._dtype(value))
            for source in sources:
                self._add(value, self.rounded.get(source.unique()))

    def _is_exact(self, value: Value) -> bool:
        return (
            value.unique() in self.exact
            or value.node().kind() == "prim::Constant"
            or not _holds_tensors(value)
        )


def _holds_tensors(value: Value) -> bool:
    """Whether a value is a tensor, or a list or dictionary of them."""
    return "Tensor" in str(value.type())


def _keep_coarsest(
    table: dict[int, str], value: Value, dtypes: Iterable[str | None]
) -> None:
    """Set a value's entry to the coarsest of these dtypes and of the entry itself."""
    known = {*dtypes, table.get(value.unique())}
    for coarse in _COARSEST:
        if coarse in known:
            table[value.unique()] = coarse
            return
