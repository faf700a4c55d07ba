"""Issue 16: numbers of a trace that was saved raise no dtype."""

import torch
from torch import Tensor

TRACED = True


class Program(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        w = [[0, 1, 0, 0], [0.5, 0, 0, 0], [0, 0, 0, 1], [0, 0, -1, 0.25]]
        self.register_buffer("w", torch.tensor(w))
        self.register_buffer("scale", torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x: Tensor, y: Tensor, ids: Tensor):
        r = ids * 0.5
        a = x + (torch.arange(4) + 0.5) * 32
        c = x.sum() - self.scale
        return r, a, c
