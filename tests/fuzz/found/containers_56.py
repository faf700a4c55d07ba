"""Found by: --kind containers --seed 56."""

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
        if b.size(0) > 2:
            for at in range(c.size(0)):
                held.append(c + at)
        for at, one in enumerate(held):
            c = c + one * at
        return a, b, c, r, ids
