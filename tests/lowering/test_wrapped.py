"""Python numbers in a trace: the lowered graph and the file it saves answer in the dtype of the
module, saved and loaded or not.
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
    """Calls a function; `factor` is a buffer without axes, in float64."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("factor", torch.tensor(0.5, dtype=torch.float64))

    def forward(self, x):
        return self.function(self, x)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "ids times a fraction": lambda self, x: x * 0.5,
    "plus": lambda self, x: x + 0.5,
    "plus, with alpha": lambda self, x: torch.add(x, 0.5, alpha=2),
    "minus": lambda self, x: x - 0.5,
    "from": lambda self, x: 1.5 - x,
    "over": lambda self, x: x / 2.0,
    "a folded chain": lambda self, x: (torch.arange(4) + 0.5) * 32 + x,
    "a sum of no axes": lambda self, x: x.sum() * 0.5,
    "half": lambda self, x: x.half() * 0.1,
    "a tensor in the code": lambda self, x: x * torch.tensor(0.5, dtype=torch.float64),
    "a whole number": lambda self, x: x * 3 + 2,
    "a bool": lambda self, x: x * torch.tensor(True),
    "a complex number": lambda self, x: (x * 2j).abs(),
    "a buffer": lambda self, x: x * self.factor,
    "a buffer and a sum of no axes": lambda self, x: x.float().sum() - self.factor,
    "rounded": lambda self, x: torch.div(x, 2.5, rounding_mode="floor"),
    "floor": lambda self, x: x // 2.5,
    "where": lambda self, x: torch.where(x > 1.5, x, 1.5),
    "sinusoids": lambda self, x: torch.sin(
        x[:, None] * torch.exp(torch.arange(0, 4, 2) * (-9.21 / 4))
    ),
    "a masked mean": lambda self, x: (x * (x > 1)).sum() / ((x > 1).sum() + 1e-6),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_numbers_of_a_trace_do_not_raise_the_dtype(
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
    for where, output in outputs.items():
        torch.testing.assert_close(
            output, expected, msg=lambda m, where=where: f"{where}: {m}"
        )


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_trace_that_was_not_saved_answers_alike(name: str) -> None:
    x = torch.arange(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.jit.trace(Holder(PROGRAMS[name]), x, check_trace=False)
    torch.testing.assert_close(builder.lower(module).run(x)[0], module(x))
