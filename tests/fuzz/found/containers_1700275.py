"""Found by: --kind containers --seed 1700275."""

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
        held = [a]
        named = {"p": a, "q": b}
        if bool(ids[0] > 1) and a.size(0) > 1:
            c = a + 0
        else:
            named["p"].add_(1)
            held.append(b + 1)
        b = torch.stack(held).mean(0)
        return a, b, c, r, ids
