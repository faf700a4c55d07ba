"""Found by: --kind inplace --seed 1700433."""

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
        for step in range(5):
            if not bool(c.min() > -5):
                break
            c = c - c.abs() - 1
            for t in range(c.size(0)):
                a[-1].copy_(c[0])
        return a, b, c, r, ids
