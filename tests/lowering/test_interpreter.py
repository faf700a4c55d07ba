"""torch's interpreter runs lowered graphs, also with nested loops."""

from __future__ import annotations

import io

import pytest
import torch
from torch import Tensor

import builder
from builder import TensorSpec


class Rebound(torch.nn.Module):
    """The outer loop returns a tensor that the inner one reads."""

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        p, q = x, x * 2
        for _ in range(int(ids[0])):
            s = torch.relu(p) + 1
            for _ in range(x.size(0)):
                q = q + s
            p = s
        return p, q


class Counted(torch.nn.Module):
    """Like `Rebound`, with a number."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        count, q = 1, x * 2
        for _ in range(int(ids[0])):
            more = count + int(ids[1])
            for _ in range(x.size(0)):
                q = q + more
            count = more
        return q * count


class Limited(torch.nn.Module):
    """The outer loop returns a number that the inner loop reads and a branch sets again."""

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        c, n, m = x * 2, x.size(0), 1
        for _ in range(int(ids[0])):
            m = min(n, 3)
            for _ in range(int(ids[0])):
                c = x.narrow(0, 0, m).mean(0) + x
        if int(ids.sum()) % 2 == 1:
            m = n // 2 + 1
        return torch.nn.functional.pad(c, [0, 0, m, 0])[m:], c


@pytest.mark.parametrize(
    "module", [Rebound(), Counted(), Limited()], ids=["tensor", "number", "set again"]
)
@pytest.mark.parametrize("optimized", [True, False])
def test_value_survives_inner_loop_that_reads_it(
    module: torch.nn.Module, optimized: bool
) -> None:
    dims = {"n": (1, 4, 8)}
    specs = [TensorSpec("float32", ("n", 4), dims=dims), TensorSpec("int64", (2,))]
    lowered = builder.lower(torch.jit.script(module), specs=specs)
    file = io.BytesIO()
    lowered.save(file)
    file.seek(0)
    loaded = torch.jit.load(file)
    x, ids = torch.randn(3, 4), torch.tensor([3, 2])
    expected = module(x, ids)
    expected = expected if isinstance(expected, tuple) else (expected,)
    with torch.jit.optimized_execution(optimized):  # type: ignore[attr-defined]
        torch.testing.assert_close(tuple(loaded(x, ids)), expected)
    torch.testing.assert_close(lowered.run(x, ids), expected)
