"""Found by: --kind containers --seed 114."""

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
        if bool(ids[0] > 1) and c.size(0) > 1:
            b = b + 1
        else:
            held = [c, c]
        held = held[:2]
        held[0].mul_(0.5)
        return a, b, c, r, ids
