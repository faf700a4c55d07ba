"""Found by: --kind inplace --seed 1700687."""

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
        v = b.view(-1)
        r = ids * 1.0
        held = [a]
        for t in range(2):
            for t in range(int(ids[0])):
                v = a.view(-1)
            a = c @ self.w
        v.add_(1)
        return a, b, c, r, ids
