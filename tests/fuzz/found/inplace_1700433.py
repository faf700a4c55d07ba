"""Found by: --kind inplace --seed 1700433."""

import torch
from torch import Tensor

TRACED = False
EXPORTED = False


class Program(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        w = [[0, 1, 0, 0], [0.5, 0, 0, 0], [0, 0, 0, 1], [0, 0, -1, 0.25]]
        self.register_buffer("w", torch.tensor(w))
        self.register_buffer("scale", torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x: Tensor, y: Tensor, ids: Tensor):
        a = x.clone()
        b = y.clone()
        c = x - y
        r = ids * 1.0
        for step in range(5):
            if not bool(c.min() > -5):
                break
            c = c - c.abs() - 1
            for t in range(c.size(0)):
                a[-1].copy_(c[0])
        return a, b, c, r, ids
