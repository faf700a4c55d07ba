"""The least integer divided by -1 does not end a process that serves a published graph."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import builder

LEAST = -(2**63)


def by_tensor(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y, rounding_mode="trunc")


def by_minus_one(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, -1, rounding_mode="trunc") + y


def by_number(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, int(y[0]), rounding_mode="trunc")


def of_numbers(x: Tensor, y: Tensor) -> Tensor:
    a, b = int(x[0]), int(y[0])
    both = divmod(a, b)
    return torch.tensor([a // b, a % b, both[0], both[1]])


DIVISIONS = [by_tensor, by_minus_one, by_number, of_numbers]
RUN = """
import sys, torch
for path in sys.argv[1:]:
    print(*torch.jit.load(path)(torch.tensor([-(2**63)]), torch.tensor([-1]))[0].tolist())
"""


@pytest.mark.slow
def test_least_integer_by_minus_one_has_an_answer(tmp_path: Path) -> None:
    paths = []
    for function in DIVISIONS:
        paths.append(str(tmp_path / f"{function.__name__}.pt"))
        builder.lower(torch.jit.script(function)).save(paths[-1])
    run = subprocess.run(
        [sys.executable, "-c", RUN, *paths], capture_output=True, text=True, check=True
    )
    assert [line.split() for line in run.stdout.splitlines()] == [
        [str(LEAST)],
        [str(LEAST - 1 + 2**64)],
        [str(LEAST)],
        [str(LEAST), "0", str(LEAST), "0"],
    ]


@pytest.mark.parametrize("function", DIVISIONS)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.float])
def test_other_quotients_are_those_of_torch(
    function: object, dtype: torch.dtype
) -> None:
    saved = builder.lower(torch.jit.script(function)).function()
    x = torch.tensor([7, -7, 0, 1, -128]).to(dtype)
    for divisor in (-1, 2, -3):
        y = torch.tensor([divisor, -1, 3, -2, -1]).to(dtype)
        if y[0] == 0 or (dtype == torch.uint8 and divisor < 0):
            continue
        expected = function(x, y)
        (result,) = saved(x, y)
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
        assert torch.equal(result.signbit(), expected.signbit())


def test_quotients_of_unsigned_integers_by_a_number_are_those_of_torch() -> None:
    """A 0-d divisor of -1 becomes 255, as in torch."""
    saved = builder.lower(torch.jit.script(by_tensor)).function()
    x, divisor = torch.tensor([0, 1, 254, 255], dtype=torch.uint8), torch.tensor(-1)
    assert torch.equal(saved(x, divisor)[0], by_tensor(x, divisor))
