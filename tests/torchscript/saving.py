"""Save a module and load it again."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import torch


def saved(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """The module, saved and loaded again."""
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)  # type: ignore[no-any-return]


def traced(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor]
) -> torch.jit.ScriptModule:
    """The trace of a function, saved and loaded again. A module that calls the function has the
    same trace, but torch compares each traced module with all earlier ones of its class.
    """

    def forward(*tensors: torch.Tensor) -> Any:
        return function(*tensors)

    return saved(torch.jit.trace(forward, tuple(inputs), check_trace=False))
