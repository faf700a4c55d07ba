"""Inference of dtypes and ranks from the graph, and from the description of its inputs if there is
one.

torch's meta kernels answer for most operators (`kernels`), and need the dtype and the rank of every
tensor. The tables below are for operators whose dtype is known without the rank, or the reverse.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from builder.analysis import constants, kernels
from builder.dtypes import dtype_of
from builder.graph_types import Node, Value


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


_BOOL = _aten(
    "eq ne lt le gt ge isnan isinf isfinite isposinf isneginf logical_and logical_or"
    " logical_xor logical_not any all"
)
_LONG = _aten("argmax argmin argsort nonzero")
_OF_BITS = _aten("__and__ __or__ __xor__ bitwise_and bitwise_or bitwise_xor")
_OF_BYTES = _aten("all any")  # uint8 for uint8, the old dtype of masks
# These return the dtype of their first input.
_ALONG = _aten(
    "reshape view flatten unflatten squeeze unsqueeze transpose permute t expand expand_as"
    " repeat select slice narrow contiguous clone detach index_select flip roll relu neg"
    " bitwise_not tril triu masked_fill gather scatter index_put constant_pad_nd movedim"
    " linear _convolution layer_norm batch_norm group_norm max_pool2d avg_pool2d"
    " adaptive_avg_pool2d hardtanh gelu matmul bmm mm fake_quantize_per_tensor_affine"
    " fake_quantize_per_channel_affine"
) | {"prim::unchecked_cast"}
_PROMOTING = _aten("add sub mul div")
_DTYPE_AT = {"aten::to": 1, "aten::zeros": 1, "aten::ones": 1, "aten::full": 2, "aten::softmax": 2}
# The default dtype is that of the first input.
_LIKE = {"aten::softmax": 2, "aten::zeros_like": 1, "aten::ones_like": 1, "aten::full_like": 2}
_DTYPE_AT |= _LIKE

# These return the rank of their first input.
_SAME_RANK = _ALONG - _aten(
    "reshape view flatten unflatten squeeze unsqueeze expand expand_as repeat select t"
    " matmul linear gather masked_fill"
) | _aten(
    "softmax log_softmax to dropout sigmoid tanh exp zeros_like ones_like full_like silu"
    " logical_not contiguous cumsum sqrt rsqrt abs leaky_relu conv1d conv2d conv3d"
    " conv_transpose1d conv_transpose2d conv_transpose3d max_pool1d max_pool3d bitwise_not"
    " t isnan upsample_nearest2d"
)
_BROADCAST = _OF_BITS | _aten(
    "add sub mul div pow eq ne lt le gt ge maximum minimum logical_and logical_or where"
    " masked_fill remainder fmod floor_divide atan2"
)
Rank = int | None
Fact = tuple[torch.dtype | None, Rank]


class Facts:
    """The dtype and the rank of each value, as far as known. Query it in program order."""

    def __init__(self, ranked: bool = True) -> None:
        """Without `ranked`, ranks are unknown: the graph changes the axes of tensors in place."""
        self._facts: dict[int, Fact] = {}
        self.ranked = ranked

    def know(self, value: Value, dtype: torch.dtype | None, rank: Rank) -> None:
        """Set a value's dtype and rank from outside."""
        self._facts[value.unique()] = (dtype, rank)

    def dtype(self, value: Value) -> torch.dtype | None:
        """The dtype of a tensor, None when it depends on the inputs."""
        return self._fact(value)[0]

    def rank(self, value: Value) -> Rank:
        """The number of axes of a tensor, None when it depends on the inputs."""
        return self._fact(value)[1] if self.ranked else None

    def _fact(self, value: Value) -> Fact:
        """The recorded fact of a value. That of a constant is computed on first use."""
        fact = self._facts.get(value.unique())
        if fact is None:
            known = constants.constant(value)
            fact = (known.dtype, known.dim()) if isinstance(known, torch.Tensor) else (None, None)
            self._facts[value.unique()] = fact
        return fact

    def learn(self, node: Node) -> None:
        """Record the facts of a node's outputs. The nodes of its blocks must be recorded before."""
        kind = node.kind()
        if kind == "prim::If":
            return self._join(node)
        functional, tells_dtype, tells_rank = _tells(kind)
        if (tells_dtype or tells_rank) and node.outputsSize() == 1 and node.inputsSize():
            is_write = functional != kind
            dtype = self._dtype_of_result(node, functional, is_write) if tells_dtype else None
            rank = self._rank_of_result(node, functional, is_write) if tells_rank else None
            self.know(node.output(), dtype, rank)
        elif kind.startswith("aten::") and self.ranked:
            made = kernels.facts_of(node, self._fact)
            for output, fact in zip(node.outputs(), made or (), strict=False):
                self.know(output, *fact)

    def _join(self, node: Node) -> None:
        ends = [list(block.outputs()) for block in node.blocks()]
        for output, one, other in zip(node.outputs(), *ends, strict=True):
            dtype, rank = self.dtype(one), self.rank(one)
            same = dtype if dtype == self.dtype(other) else None
            self.know(output, same, rank if rank == self.rank(other) else None)

    def _dtype_of_result(self, node: Node, kind: str, is_write: bool) -> torch.dtype | None:
        if is_write:
            return self.dtype(node.inputsAt(0))  # in place: neither dtype nor axes change
        if kind in _OF_BYTES:
            read = self.dtype(node.inputsAt(0))
            return read if read in (None, torch.uint8) else torch.bool
        if kind in _BOOL:
            return torch.bool
        if kind in _LONG:
            return torch.int64
        if kind in _DTYPE_AT and node.inputsSize() > _DTYPE_AT[kind]:
            given = constants.constant(node.inputsAt(_DTYPE_AT[kind]))
            if isinstance(given, int) and not isinstance(given, bool):
                return dtype_of(given)
            if kind in _LIKE and constants.is_none(node.inputsAt(_DTYPE_AT[kind])):
                return self.dtype(node.inputsAt(0))
            return None
        if kind in _OF_BITS:
            first, other = (self.dtype(value) for value in list(node.inputs())[:2])
            return first if first == other else None
        if kind in _PROMOTING:
            return self._promoted(node)
        return self.dtype(node.inputsAt(0)) if kind in _ALONG else None

    def _promoted(self, node: Node) -> torch.dtype | None:
        """The promoted dtype of tensors of one dtype, or of a floating-point tensor and a
        number.
        """
        first, other = self.dtype(node.inputsAt(0)), node.inputsAt(1)
        kind = other.type().kind()
        agree = kind in ("IntType", "FloatType") or (
            kind == "TensorType" and self.dtype(other) == first
        )
        return first if first is not None and first.is_floating_point and agree else None

    def _rank_of_result(self, node: Node, kind: str, is_write: bool) -> Rank:
        if kind in _SAME_RANK or is_write:
            return self.rank(node.inputsAt(0))
        if kind in _BROADCAST:
            ranks = [self.rank(v) for v in node.inputs() if v.type().kind() == "TensorType"]
            if (known := [r for r in ranks if r is not None]) and len(known) == len(ranks):
                return max(known)
            return None
        return _RANKS[kind](self, node) if kind in _RANKS else None


@lru_cache(maxsize=4096)
def _tells(kind: str) -> tuple[str, bool, bool]:
    """The kind without the `_` of an in-place operator, and whether an operator of this kind
    determines the dtype and the rank of its result.
    """
    functional = _functional_kind(kind)
    dtype = (
        functional != kind
        or kind in _BOOL | _LONG | _OF_BITS | _ALONG | _PROMOTING
        or kind in _DTYPE_AT
    )
    rank = functional != kind or kind in _SAME_RANK | _BROADCAST or kind in _RANKS
    return functional, dtype, rank


def _functional_kind(kind: str) -> str:
    if kind.endswith("__") or not kind.endswith("_") or kind.startswith("prim::"):
        return kind
    return kind[:-1]


def _listed(at: int) -> Callable[[Facts, Any], Rank]:
    return lambda facts, node: constants.list_length(node.inputsAt(at))


def _plus(extra: int) -> Callable[[Facts, Any], Rank]:
    def rank(facts: Facts, node: Node) -> Rank:
        first = facts.rank(node.inputsAt(0))
        return None if first is None else first + extra

    return rank


def _flattened(facts: Facts, node: Node) -> Rank:
    rank, ends = (
        facts.rank(node.inputsAt(0)),
        [constants.constant(node.inputsAt(at)) for at in (1, 2)],
    )
    if rank is None or None in ends:
        return None
    first, last = (end % max(rank, 1) for end in ends)
    return max(rank, 1) - int(last - first)


def _unflattened(facts: Facts, node: Node) -> Rank:
    rank, count = facts.rank(node.inputsAt(0)), constants.list_length(node.inputsAt(2))
    return None if rank is None or count is None else rank + count - 1


def _joined(facts: Facts, node: Node) -> Rank:
    """The rank of an input of rank 2 or more. All inputs have this rank, except empty tensors of
    rank 1, which are ignored.
    """
    ranks = [facts.rank(value) for value in constants.list_items(node.inputsAt(0)) or ()]
    return next((rank for rank in ranks if rank is not None and rank > 1), None)


def _multiplied(facts: Facts, node: Node) -> Rank:
    """The rank of a product: a matrix keeps it, a vector removes the last axis."""
    rank, weight = facts.rank(node.inputsAt(0)), weight_shape(node.inputsAt(1))
    return None if rank is None or weight is None else rank + len(weight) - 2


def weight_shape(weight: Value) -> tuple[int, ...] | None:
    """The shape of a constant, possibly behind fake quantization."""
    while weight.node().kind().startswith("aten::fake_quantize_"):
        weight = weight.node().inputsAt(0)
    known = constants.constant(weight)
    return tuple(known.shape) if isinstance(known, torch.Tensor) else None


_RANKS: dict[str, Callable[[Facts, Any], Rank]] = {
    "aten::reshape": _listed(1),
    "aten::view": _listed(1),
    "aten::expand": _listed(1),
    "aten::expand_as": lambda facts, node: facts.rank(node.inputsAt(1)),
    "aten::repeat": _listed(1),
    "aten::zeros": _listed(0),
    "aten::ones": _listed(0),
    "aten::full": _listed(0),
    "aten::unsqueeze": _plus(1),
    "aten::select": _plus(-1),
    "aten::bmm": _plus(0),
    "aten::flatten": _flattened,
    "aten::unflatten": _unflattened,
    "aten::cat": _joined,
    "aten::linear": _multiplied,
    "aten::arange": lambda facts, node: 1,
    "aten::gather": lambda facts, node: facts.rank(node.inputsAt(2)),
    "aten::embedding": lambda facts, node: (
        None if (r := facts.rank(node.inputsAt(1))) is None else r + 1
    ),
}
