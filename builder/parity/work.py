"""A deterministic limit of the work of a module: its operators are counted, not its seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

_CALL = 2 * 10**5
_ELEMENT = 16
"""The work of one call of an operator, and of one element that it reads or writes, in
floating-point operations that take as long on one core.
"""


class TooMuchWork(RuntimeError):
    """The limit of a Work is exceeded."""


class Work(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operators that run inside the block, and stops them at a limit.

    The unit is about one floating-point operation of a convolution or matrix product. The count
    goes on over several blocks. An operator after the limit raises TooMuchWork.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.limit = limit
        self.done = 0

    @property
    def exceeded(self) -> bool:
        """Whether the work is above the limit."""
        return self.done > self.limit

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Off: it would import torch._dynamo, which takes seconds."""
        return False

    def __torch_dispatch__(
        self,
        operator: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator and count it."""
        if self.exceeded:
            raise TooMuchWork(f"more than {self.limit} operations")
        keywords = keywords or {}
        result = operator(*arguments, **keywords)
        elements = sum(
            leaf.numel()
            for leaf in tree_leaves((arguments, result))
            if isinstance(leaf, torch.Tensor)
        )
        packet = getattr(operator, "_overloadpacket", None)
        count = flop_registry.get(packet)
        flops = count(*arguments, **keywords, out_val=result) if count else 0
        self.done += _CALL + _ELEMENT * elements + int(flops)
        return result
