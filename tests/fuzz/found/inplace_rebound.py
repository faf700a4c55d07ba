"""Issue 16: a loop rebinds a name to memory that later iterations write."""

import torch
from torch import Tensor

TRACED = False


class Program(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        w = [[0, 1, 0, 0], [0.5, 0, 0, 0], [0, 0, 0, 1], [0, 0, -1, 0.25]]
        self.register_buffer("w", torch.tensor(w))
        self.register_buffer("scale", torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x: Tensor, y: Tensor, ids: Tensor):
        a = torch.zeros_like(x)
        b = a
        c = a
        for t in range(x.size(0)):
            a += (x[t] - 0.5).relu()
            c = c + (a - b)
            b = a
        return a, b, c
