"""The dtype and the rank of an operator's results, from torch's meta kernels.

A meta kernel computes the dtype and the shape of a result without data. Each tensor is represented
by a meta tensor with all sizes equal. Several values are tried for an unknown rank, dtype or number
(`candidates`). A fact holds if the results of all calls that the kernel accepts agree on it.

A kernel is called only if a call cannot crash. Others may read memory that a meta tensor does not
have, or index a list without a bounds check: `lstm` with weights of size 2 is a segmentation fault.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from builder.analysis import candidates
from builder.analysis.arguments import Fact, Operator, described, operator_of
from builder.graph_types import Node

BY_SIZES = frozenset(
    "squeeze squeeze_copy cat concat concatenate gather scatter scatter_add scatter_reduce"
    " take_along_dim batch_norm".split()
)
"""Operators whose rank depends on sizes, or that accept empty tensors of any rank beside others:
`squeeze` removes axes of size 1, `cat` ignores empty tensors of rank 1. Examples have equal sizes,
so only the dtype of the results is stated.
"""

BY_MASKS = frozenset(["index", "_unsafe_index"])
"""Operators whose kernels reject masks. The rank is stated only if no index can be a mask."""


def facts_of(node: Node, fact: Callable[[Any], Fact]) -> tuple[Fact, ...]:
    """The facts of each output of an operator; `fact` returns those of its inputs. Empty if torch
    has no meta kernel.
    """
    operator = operator_of(node.schema())
    if operator is None:
        return ()
    try:
        arguments = described(operator, node, fact)
    except LookupError:
        return ()
    return _evaluated(operator, arguments)


@lru_cache(maxsize=4096)
def _evaluated(operator: Operator, arguments: tuple[Any, ...]) -> tuple[Fact, ...]:
    ranges = candidates.ranges(arguments)
    try:
        facts = _facts(operator, arguments, ranges)
    except LookupError:  # too many calls
        return ()
    may_be_masked = operator.name in BY_MASKS and candidates.has_unknown_dtype(
        arguments[1:]
    )
    if ranges.has_all_ranks and operator.name not in BY_SIZES and not may_be_masked:
        return tuple(facts)
    return tuple((dtype, None) for dtype, _ in facts)


def _facts(
    operator: Operator, arguments: tuple[Any, ...], ranges: candidates.Ranges
) -> list[Fact]:
    """The facts for examples of the first size with which a call is accepted. With unknown ranks,
    those of size 1 must agree: a rank may be rejected only for its number of elements.
    """
    first: list[Fact] = []
    for size in candidates.SIZES:
        facts = _agreement(operator, arguments, ranges, size)
        if facts and first:
            return [common(*pair) for pair in zip(first, facts, strict=True)]
        first = first or facts
        if first and (ranges.are_ranks_known or size == 1):
            return first
    return first


def _agreement(
    operator: Operator, arguments: tuple[Any, ...], ranges: candidates.Ranges, size: int
) -> list[Fact]:
    """The facts on which all accepted calls agree. Empty if no call is accepted. Raises LookupError
    if there are too many.
    """
    agreed: list[Fact] = []
    # Whether a call without a tensor of the largest rank was accepted.
    is_bounded = False
    for values, is_largest in candidates.calls(arguments, ranges, size):
        facts = _results(operator, values)
        if not facts:
            continue
        is_bounded = is_bounded or not is_largest
        agreed = [common(*pair) for pair in zip(agreed or facts, facts, strict=True)]
        if not any(dtype is not None or rank is not None for dtype, rank in agreed):
            break
    # An operator that needs this many axes may accept larger ranks, which were not tried.
    if is_bounded:
        return agreed
    return [(dtype, None) for dtype, _ in agreed]


def common(first: Fact, second: Fact) -> Fact:
    """The dtype and rank that two facts share; None for one that differs."""
    dtype, rank = first
    other_dtype, other_rank = second
    if dtype != other_dtype:
        dtype = None
    if rank != other_rank:
        rank = None
    return dtype, rank


def _results(operator: Operator, values: list[Any]) -> list[Fact]:
    """The facts of the results of one call; empty if the kernel rejects it."""
    keywords = {name: values[at] for at, name in operator.keywords if at < len(values)}
    try:
        with torch.no_grad():
            outputs = operator.function(*values[: operator.positional], **keywords)
    except Exception:
        # kernels raise different errors for sizes or dtypes that do not fit
        return []
    if not isinstance(outputs, tuple):
        outputs = (outputs,)
    return [(tensor.dtype, tensor.dim()) for tensor in outputs]
