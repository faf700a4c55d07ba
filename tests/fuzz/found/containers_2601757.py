"""Found by: --kind containers --seed 2601757."""

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
        if bool(a.sum() > -30.0):
            for at in range(c.size(0)):
                held.append(c + at)
        else:
            for at in range(a.size(0)):
                held.append(a + at)
        held = [one * 2 for one in held]
        held[0].mul_(0.5)
        return a, b, c, r, ids
