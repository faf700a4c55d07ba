"""Found by: --kind containers --seed 1700292."""

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
        for t in range(b.size(0)):
            named = dict([("p", b), ("q", b)])
            named["p"].add_(1)
        return a, b, c, r, ids
