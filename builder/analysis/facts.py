"""Inference of dtypes and ranks from the graph, and from the description of its inputs if there is
one.

torch's meta kernels infer the results of most operators (`kernels`). The rules below are for
operators without a meta kernel.
"""

from __future__ import annotations

import torch

from builder.analysis import constants, kernels
from builder.analysis.arguments import Fact
from builder.graph_types import Node, Value

Rank = int | None

_UNKNOWN: Fact = (None, None)
_NO_KERNEL: dict[str, tuple[Fact, ...]] = {
    # The number of elements that are found depends on the data, so a meta tensor cannot have it.
    "aten::nonzero": ((torch.int64, 2),),
    "aten::argwhere": ((torch.int64, 2),),
    "prim::NumToTensor": ((None, 0),),
}
# torch accepts empty tensors of other ranks beside these inputs, which meta tensors of equal sizes
# do not show: the rank is that of the input at this index.
_RANK_OF = {
    "aten::gather": 2,
    "aten::scatter": 0,
    "aten::scatter_add": 0,
    "aten::scatter_reduce": 0,
    "aten::batch_norm": 0,
}
# lists of parts of the first input: how much the rank of a part differs from the input's
_PARTS = {
    "aten::unbind": -1,
    "aten::chunk": 0,
    "aten::split": 0,
    "aten::split_with_sizes": 0,
}
_RECURRENT = frozenset(
    f"aten::{name}{suffix}"
    for name in ("gru", "lstm", "rnn_tanh", "rnn_relu")
    for suffix in ("", "_cell")
)
"""Operators whose weights have other sizes than examples of equal sizes."""
_READS_OF_LISTS = frozenset(["aten::__getitem__", "aten::len", "prim::ListUnpack"])
_AS_FIRST_INPUT = frozenset(
    [
        "prim::unchecked_cast",  # not an operator of torch
        "aten::fake_quantize_per_tensor_affine",
        "aten::fake_quantize_per_channel_affine",
        "aten::index_put",  # it has a kernel, but too many indices to try all of them
    ]
)
# torch multiplies tensors of one dtype only. Its meta kernels also accept different dtypes.
_OF_ONE_DTYPE = frozenset(f"aten::{name}" for name in ("linear", "matmul", "bmm", "mm"))


class Facts:
    """The dtype and the rank of each value, as far as known. Query it in program order."""

    def __init__(self, ranked: bool = True) -> None:
        """Without `ranked`, ranks are unknown: the graph changes the axes of tensors in place."""
        self._facts: dict[int, Fact] = {}
        self.ranked = ranked

    def know(self, value: Value, dtype: torch.dtype | None, rank: Rank) -> None:
        """Set a value's dtype and rank from outside."""
        self._facts[value.unique()] = (dtype, rank if self.ranked else None)

    def dtype(self, value: Value) -> torch.dtype | None:
        """The dtype of a tensor, None when it depends on the inputs."""
        return self._fact(value)[0]

    def rank(self, value: Value) -> Rank:
        """The number of axes of a tensor, None when it depends on the inputs."""
        return self._fact(value)[1]

    def _fact(self, value: Value | torch.Tensor) -> Fact:
        """The recorded fact of a value, or that of a tensor from a constant list. The fact of a
        constant is computed on first use.
        """
        if isinstance(value, torch.Tensor):
            return value.dtype, value.dim() if self.ranked else None
        fact = self._facts.get(value.unique())
        if fact is None:
            tensor = constants.constant(value)
            fact = _UNKNOWN
            if isinstance(tensor, torch.Tensor):
                fact = self._fact(tensor)
            elif self.ranked and _is_wrapped_number(value, tensor):
                fact = None, 0
            self._facts[value.unique()] = fact
        return fact

    def learn(self, node: Node) -> None:
        """Record the facts of a node's outputs. The nodes of its blocks must be recorded before."""
        kind = node.kind()
        if kind == "prim::If":
            self._join(node)
        elif kind in _NO_KERNEL:
            self._know_all(node, _NO_KERNEL[kind])
        elif kind in _AS_FIRST_INPUT or _is_in_place(kind):
            self._know_all(node, (self._fact(node.inputsAt(0)),))
        elif kind == "aten::__getitem__":
            self._know_part(node)
        elif kind in _RECURRENT:
            self._know_states(node)
        elif kind.startswith("aten::"):
            self._know_all(node, kernels.facts_of(node, self._fact))
            if (
                kind in _OF_ONE_DTYPE
                and (dtype := self.dtype(node.inputsAt(0))) is not None
            ):
                self.know(node.output(), dtype, self.rank(node.output()))
            elif kind in _RANK_OF:
                self._know_rank(node, self.rank(node.inputsAt(_RANK_OF[kind])))
            elif kind == "aten::cat":
                self._know_rank(node, self._joined_rank(node))

    def _know_all(self, node: Node, facts: tuple[Fact, ...]) -> None:
        for at, fact in enumerate(facts):
            self.know(node.outputsAt(at), *fact)

    def _know_part(self, node: Node) -> None:
        """Record an element of a list of parts, unless the list may be changed."""
        parts = node.inputsAt(0)
        kind = parts.node().kind()
        if kind not in _PARTS:
            return
        if any(use.user.kind() not in _READS_OF_LISTS for use in parts.uses()):
            return
        dtype, rank = self._fact(parts.node().inputsAt(0))
        if rank is not None:
            rank += _PARTS[kind]
        self.know(node.output(), dtype, rank)

    def _know_states(self, node: Node) -> None:
        """Record the results of a recurrent operator, which are as the input and the states. Packed
        sequences have another rank than the states.
        """
        states = constants.list_items(node.inputsAt(1)) or [node.inputsAt(1)]
        facts = {self._fact(value) for value in (node.inputsAt(0), *states)}
        rank = 2 if node.kind().endswith("_cell") else 3
        if len(facts) == 1 and (fact := facts.pop())[1] == rank:
            self._know_all(node, (fact,) * node.outputsSize())

    def _know_rank(self, node: Node, rank: Rank) -> None:
        self.know(node.output(), self.dtype(node.output()), rank)

    def _join(self, node: Node) -> None:
        ends = [list(block.outputs()) for block in node.blocks()]
        for output, if_true, if_false in zip(node.outputs(), *ends, strict=True):
            fact = kernels.common(self._fact(if_true), self._fact(if_false))
            self.know(output, *fact)

    def _joined_rank(self, node: Node) -> Rank:
        """The rank of an input of rank 2 or more. All inputs have this rank, except empty tensors
        of rank 1, which `cat` ignores. Examples of equal sizes do not have them.
        """
        for value in constants.list_items(node.inputsAt(0)) or ():
            rank = self.rank(value)
            if rank is not None and rank > 1:
                return rank
        return None


def _is_wrapped_number(value: Value, number: object) -> bool:
    """Whether a constant is a number that a trace wrapped in a tensor."""
    return value.type().kind() == "TensorType" and isinstance(number, int | float)


def _is_in_place(kind: str) -> bool:
    """Whether the operator returns its first input, whatever the others are. Operators that change
    the axes in place are excluded by `Facts.ranked`. Meta kernels would write to the examples.
    """
    return kind.endswith("_") and not kind.endswith("__") and kind.startswith("aten::")
