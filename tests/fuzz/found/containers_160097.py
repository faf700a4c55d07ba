"""Found by: --kind containers --seed 160097."""

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
        named = {"p": a, "q": b}
        a = b - b.mean(0)
        if c.size(0) > 2:
            named["p"].add_(1)
            named["p"] = named["q"] - b
        named["p"].add_(1)
        return a, b, c, r, ids
