"""Found by: --kind inplace --seed 1701522."""

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
        if bool((c > 0.0).any()):
            c = held[-1] + c
            a.add_(a)
        else:
            held.append(c)
        return a, b, c, r, ids
