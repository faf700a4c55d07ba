"""The assertions of an exported program. They are not written into the graph, because an engine
cannot raise exceptions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from builder.reachable import reachable

ASSERTIONS = frozenset(
    """
    aten._assert_async aten._assert_scalar aten._assert_tensor_metadata aten._print
    aten._functional_assert_async aten._functional_assert_scalar aten.sym_constrain_range
    aten.sym_constrain_range_for_size aten._functional_sym_constrain_range
    aten._functional_sym_constrain_range_for_size
    """.split()
)
"""Operators that only check values and compute nothing that an output reads."""
PYTHON_ASSERTIONS: tuple[Callable[..., Any], ...] = (torch._check, torch._check_is_size)
_WITHOUT_CONDITION = frozenset(
    [torch.ops.aten._assert_tensor_metadata.default, torch.ops.aten._print.default]
)
"""Operators of ASSERTIONS that check no values: one checks a tensor's dtype, device and layout, the
other prints.
"""
_READS_DATA = frozenset(
    [torch.ops.aten.item.default, torch.ops.aten._local_scalar_dense.default]
)


def depends_on_data(node: torch.fx.Node) -> bool:
    """Whether an assertion checks the content of a tensor, and not only sizes, which the ranges of
    the manifest limit.
    """
    if node.target in _WITHOUT_CONDITION:
        return False
    condition = next(iter((*node.args, *node.kwargs.values())), None)
    if not isinstance(condition, torch.fx.Node):
        return False

    def sources(node: torch.fx.Node) -> list[torch.fx.Node]:
        return [] if _is_tensor(node) else node.all_input_nodes

    return _is_tensor(condition) or any(
        source.target in _READS_DATA for source in reachable([condition], sources)
    )


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)
