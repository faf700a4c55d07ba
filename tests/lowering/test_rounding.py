"""The outputs that depend on results of 16 bits, and no others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.lowering import rounded_outputs
from builder.manifest import TensorSpec


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.low = nn.Linear(4, 4).half()
        self.lowest = nn.Linear(4, 4).to(torch.bfloat16)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        full = self.first(x)
        half = self.low(full.half())
        both = self.lowest(half.to(torch.bfloat16)).float()
        branch = x
        if bool(x.sum() > 0):
            branch = half.float()
        loop = x
        other = x
        for row in range(x.size(0)):
            other = other + loop
            loop = loop + half.float() * row
        carried = x.half()
        written = x.half().clone()
        parts = [x.half()]
        copies = x
        for row in range(x.size(0)):
            carried = torch.tanh(carried)
            written[row] *= 3
            parts.append(parts[-1] * 3)
            copies = copies + x.half()[row].float()
        return {
            "full": full,
            "half": half.float() * 2,
            "both": both + half,
            "cast": x.half().reshape(-1).float() * 3,
            "sum of casts": (x.half() + x.half()).float(),
            "cast of a result": full.half().float(),
            "branch": branch,
            "loop": loop,
            "through the loop": other,
            "carried": carried.float(),
            "written": written.float(),
            "list": parts[-1].float(),
            "copies in a loop": copies,
            "integer": half > 0,
        }


def test_outputs_that_depend_on_results_of_16_bits() -> None:
    lowered = builder.lower(torch.jit.script(Mixed().eval()))
    specs = [TensorSpec("float32", (4, 4), name="x")]
    rounded = rounded_outputs(lowered.graph, specs)
    assert dict(zip(lowered.outputs, rounded, strict=True)) == {
        "full": None,
        "half": "float16",
        "both": "bfloat16",
        "cast": None,
        "sum of casts": "float16",
        "cast of a result": "float16",
        "branch": "float16",
        "loop": "float16",
        "through the loop": "float16",
        "carried": "float16",
        "written": "float16",
        "list": "float16",
        "copies in a loop": None,
        "integer": "float16",
    }


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_input_that_is_only_moved_is_exact(dtype: str) -> None:
    class Moved(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x.transpose(0, 1).float() + 1, (x * 2).float()

    lowered = builder.lower(torch.jit.script(Moved()))
    specs = [TensorSpec(dtype, (4, 4), name="x")]
    assert rounded_outputs(lowered.graph, specs) == [None, dtype]
