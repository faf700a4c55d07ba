"""Found by: --kind containers --seed 160109."""

import torch
from torch import Tensor

from tests.fuzz.buffers import Buffers

TRACED = False
EXPORTED = False


class Program(Buffers):
    def forward(self, x: Tensor, y: Tensor, ids: Tensor):
        a = x.clone()
        b = y.clone()
        r = ids * 1.0
        held = [a]
        a = torch.tanh(b)
        held[0].mul_(0.5)
        c = torch.stack(held).mean(0)
        return a, b, c, r, ids
