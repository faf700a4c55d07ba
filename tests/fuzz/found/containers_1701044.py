"""Found by: --kind containers --seed 1701044."""

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
        if bool(ids[0] > 1) and b.size(0) > 1:
            named["p"] = named["q"] - c
        else:
            named["p"].add_(1)
        b = named["p"] + named["q"]
        return a, b, c, r, ids
