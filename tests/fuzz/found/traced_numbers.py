"""Issue 16: numbers of a trace that was saved raise no dtype."""

import torch
from torch import Tensor

from tests.fuzz.buffers import Buffers

TRACED = True


class Program(Buffers):
    def forward(self, x: Tensor, y: Tensor, ids: Tensor):
        r = ids * 0.5
        a = x + (torch.arange(4) + 0.5) * 32
        c = x.sum() - self.scale
        return r, a, c
