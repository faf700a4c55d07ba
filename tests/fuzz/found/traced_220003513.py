"""Found by: --kind traced --seed 220003513."""

import torch
from torch import Tensor

from tests.fuzz.buffers import Buffers

TRACED = True
EXPORTED = False


class Program(Buffers):
    def forward(self, x: Tensor, y: Tensor, ids: Tensor):
        a = x.clone()
        b = y.clone()
        r = ids * 1.0
        n = x.size(0)
        m = 1
        c = torch.cat([a[1:], b[:1]])
        b.fill_(0)
        c = torch.cat([c, a[:m]])[:n]
        return a, b, c, r, ids
