"""Found by: --kind containers --seed 81."""

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
        if int(ids.sum()) % 2 == 1:
            b = b + 1
        else:
            for at in range(c.size(0)):
                held.append(c + at)
        for one in held:
            c = c + one
        return a, b, c, r, ids
