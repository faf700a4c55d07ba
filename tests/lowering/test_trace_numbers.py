"""Python numbers in a trace: the outputs of the lowered graph and of its file have the same dtype
as the module's outputs, whether or not the trace was saved.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import builder
from tests.torchscript.saving import saved


class Holder(torch.nn.Module):
    """Calls a function; `factor` is a float64 buffer without axes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("factor", torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x):
        return self.function(self, x)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "mul": lambda self, x: x * 0.5,
    "add": lambda self, x: x + 0.5,
    "add with alpha": lambda self, x: torch.add(x, 0.5, alpha=2),
    "sub": lambda self, x: x - 0.5,
    "rsub": lambda self, x: 1.5 - x,
    "div": lambda self, x: x / 2.0,
    "folded constants": lambda self, x: (torch.arange(4) + 0.5) * 32 + x,
    "sum of all": lambda self, x: x.sum() * 0.5,
    "half": lambda self, x: x.half() * 0.1,
    "tensor literal": lambda self, x: x * torch.tensor(0.5, dtype=torch.float64),
    "int": lambda self, x: x * 3 + 2,
    "bool": lambda self, x: x * torch.tensor(True),
    "complex": lambda self, x: (x * 2j).abs(),
    "buffer": lambda self, x: x * self.factor,
    "sum of all minus buffer": lambda self, x: x.float().sum() - self.factor,
    "div with rounding": lambda self, x: torch.div(x, 2.5, rounding_mode="floor"),
    "floor division": lambda self, x: x // 2.5,
    "where": lambda self, x: torch.where(x > 1.5, x, 1.5),
    "sinusoids": lambda self, x: torch.sin(
        x[:, None] * torch.exp(torch.arange(0, 4, 2) * (-9.21 / 4))
    ),
    "masked mean": lambda self, x: (x * (x > 1)).sum() / ((x > 1).sum() + 1e-6),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_numbers_in_a_trace_do_not_promote_the_dtype(
    name: str, dtype: torch.dtype
) -> None:
    x = torch.arange(4).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.trace(Holder(PROGRAMS[name]), x, check_trace=False)
    loaded = saved(module)
    expected = loaded(x)
    lowered = builder.lower(loaded)
    file = io.BytesIO()
    lowered.save(file)
    file.seek(0)
    outputs = {"graph": lowered.run(x)[0], "file": torch.jit.load(file)(x)[0]}
    for source, output in outputs.items():
        torch.testing.assert_close(
            output, expected, msg=lambda m, source=source: f"{source}: {m}"
        )


@pytest.mark.parametrize("name", PROGRAMS)
def test_unsaved_trace_matches_module(name: str) -> None:
    x = torch.arange(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.trace(Holder(PROGRAMS[name]), x, check_trace=False)
    torch.testing.assert_close(builder.lower(module).run(x)[0], module(x))
