"""Found by: --kind containers --seed 1701030."""

import torch
from torch import Tensor

from tests.fuzz.buffers import Buffers

TRACED = False
EXPORTED = False


class Program(Buffers):
    def forward(self, x: Tensor, y: Tensor, ids: Tensor):
        a = x.clone()
        b = y.clone()
        c = x - y
        r = ids * 1.0
        named = {"p": a, "q": b}
        a = torch.where(a > 0.0, a, c)
        b = torch.minimum(b, a)
        for t in range(a.size(0) // 2):
            named = dict([("p", b), ("q", a)])
        named["p"].add_(1)
        return a, b, c, r, ids
