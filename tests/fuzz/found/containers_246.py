"""Found by: --kind containers --seed 246."""

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
        held = [a]
        for _ in range(a.size(0)):
            held.append(a + 1)
            for one in held:
                a = a + one
        return (a,)
