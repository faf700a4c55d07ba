"""Save a module and load it again."""

from __future__ import annotations

import io

import torch


def saved(module: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """The module, saved and loaded again."""
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)  # type: ignore[no-any-return]
