"""Found by: --kind inplace --seed 1700687."""

from torch import Tensor

from tests.fuzz.buffers import Buffers

TRACED = False
EXPORTED = False


class Program(Buffers):
    def forward(self, x: Tensor, y: Tensor, ids: Tensor):
        a = x.clone()
        b = y.clone()
        c = x - y
        v = b.view(-1)
        r = ids * 1.0
        held = [a]
        for t in range(2):
            for t in range(int(ids[0])):
                v = a.view(-1)
            a = c @ self.w
        v.add_(1)
        return a, b, c, r, ids
