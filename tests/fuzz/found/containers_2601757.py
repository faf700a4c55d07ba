"""Found by: --kind containers --seed 2601757."""

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
        held = [a]
        if bool(a.sum() > -30.0):
            for at in range(c.size(0)):
                held.append(c + at)
        else:
            for at in range(a.size(0)):
                held.append(a + at)
        held = [one * 2 for one in held]
        held[0].mul_(0.5)
        return a, b, c, r, ids
