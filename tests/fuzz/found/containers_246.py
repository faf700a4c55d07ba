"""Found by: --kind containers --seed 246."""

from torch import Tensor

from tests.fuzz.buffers import Buffers

TRACED = False
EXPORTED = False


class Program(Buffers):
    def forward(self, x: Tensor, y: Tensor, ids: Tensor):
        a = x.clone()
        held = [a]
        for _ in range(a.size(0)):
            held.append(a + 1)
            for one in held:
                a = a + one
        return (a,)
