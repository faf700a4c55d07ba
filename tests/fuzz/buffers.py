"""The base class of all random programs."""

from __future__ import annotations

import torch


class Buffers(torch.nn.Module):
    """A module with a float32 matrix `w` (4, 4) and a float64 number `scale`."""

    def __init__(self) -> None:
        super().__init__()
        w = [[0, 1, 0, 0], [0.5, 0, 0, 0], [0, 0, 0, 1], [0, 0, -1, 0.25]]
        self.register_buffer("w", torch.tensor(w))
        self.register_buffer("scale", torch.tensor(0.5, dtype=torch.float64))
