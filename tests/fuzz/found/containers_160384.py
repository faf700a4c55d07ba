"""Found by: --kind containers --seed 160384."""

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
        for at in range(c.size(0)):
            held.append(c + at)
        for at in range(b.size(0)):
            held.append(b + at)
        b = held[0] + held[-1]
        return a, b, c, r, ids
