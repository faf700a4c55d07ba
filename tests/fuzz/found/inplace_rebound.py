"""Issue 16: a loop rebinds a name to memory that later iterations write."""

import torch
from torch import Tensor

from tests.fuzz.buffers import Buffers

TRACED = False


class Program(Buffers):
    def forward(self, x: Tensor, y: Tensor, ids: Tensor):
        a = torch.zeros_like(x)
        b = a
        c = a
        for t in range(x.size(0)):
            a += (x[t] - 0.5).relu()
            c = c + (a - b)
            b = a
        return a, b, c
