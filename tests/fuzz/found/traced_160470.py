"""Found by: --kind traced --seed 160470."""

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
        m = max(n - 2, 1)
        c = a.unsqueeze(1).expand(n, m, 4).sum(1) / m
        return a, b, c, r, ids
