"""The targets of `ctc_loss`, which torch's CPU kernel does not check: beyond the number of classes
it reads memory of other tensors, and the result is undefined.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Checked(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context in which such targets raise IndexError."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket is torch.ops.aten._ctc_loss:
            classes = args[0].size(-1)
            read = _read(args[1], args[3])
            if read.numel() and not 0 <= read.min() <= read.max() < classes:
                raise IndexError(
                    f"ctc_loss: a target is out of range: there are {classes} classes"
                )
        return func(*args, **(kwargs or {}))


def _read(targets: torch.Tensor, lengths: Any) -> torch.Tensor:
    """The targets with 0 in the entries that torch does not read: those after its length in each
    row of 2-D targets.
    """
    if targets.dim() != 2:
        return targets
    ends = torch.as_tensor(lengths).reshape(-1, 1)
    return torch.where(torch.arange(targets.size(1)) < ends, targets, 0)
