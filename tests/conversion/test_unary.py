"""Functions of one tensor against torch: every row of the table, on reals, integers, bools and
halves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.conversion.harness import check

SPREAD = torch.tensor(
    [[-3.7, -1.0, -0.5, -1e-4], [0.0, 2.5e-5, 0.5, 0.99], [1.0, 1.5, 2.5, 7.25]]
)
UNIT = torch.linspace(-0.999, 0.999, 12).reshape(3, 4)
POSITIVE = torch.tensor([[1e-6, 0.3, 0.999, 1.0], [1.001, 2.0, 8.0, 1e5]])

REALS: list[tuple[str, torch.Tensor]] = [
    *(
        (name, SPREAD)
        for name in (
            "atan asinh cos cosh erf exp reciprocal sin sinh tan exp2 expm1 sinc erfc".split()
        )
    ),
    *((name, UNIT) for name in "acos asin atanh log1p".split()),
    *((name, POSITIVE) for name in "log log2 log10 sqrt rsqrt log1p".split()),
    ("acosh", 1 + POSITIVE),
]
WIDER = {"erfc": 1e-5, "acosh": 1e-5, "atanh": 1e-5}
"""erfc: exp(-x^2) multiplies the rounding of x^2 (60 at 7.25, so 60 * 2^-24 relative) where the
result is tiny.
"""


def function(name: str) -> Callable[[Any], Any]:
    return lambda x: getattr(torch, name)(x)


@pytest.mark.parametrize(("name", "x"), REALS)
def test_functions_of_reals(name: str, x: torch.Tensor) -> None:
    check(
        function(name), x, rtol=WIDER.get(name), dynamic={0: {0: "n"}}, more=[(x[:1],)]
    )


@pytest.mark.parametrize(
    "name", ["exp", "sqrt", "erf", "log1p", "rsqrt", "tan", "sinc", "log2"]
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers_become_float32(name: str, dtype: torch.dtype) -> None:
    check(
        function(name), torch.tensor([1, 2, 5]).to(dtype), compile=dtype == torch.int64
    )


@pytest.mark.parametrize(
    "name", ["abs", "neg", "sign", "ceil", "floor", "round", "trunc", "square", "sgn"]
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8])
def test_integers_stay_integers(name: str, dtype: torch.dtype) -> None:
    values = [0, 1, 3, 120] if dtype == torch.uint8 else [0, 1, -3, 100]
    check(
        function(name),
        torch.tensor(values, dtype=dtype),
        compile=dtype in (torch.int64, torch.uint8),
    )


@pytest.mark.parametrize(
    "name", ["ceil", "floor", "round", "trunc", "frac", "abs", "neg", "sign"]
)
def test_halves_and_signs(name: str) -> None:
    ties = torch.tensor([-2.5, -1.5, -0.5, 0.0, 0.5, 1.5, 2.5, 3.2, 8388609.0])
    check(function(name), ties)
    check(function(name), ties[:-1].half(), compile=False)


@pytest.mark.parametrize("decimals", [0, 2, -1])
def test_rounding_to_decimals(decimals: int) -> None:
    check(
        lambda x: torch.round(x, decimals=decimals),
        torch.tensor([123.456, -0.125, 7.0, 15.0]),
    )


@pytest.mark.parametrize("name", ["exp", "log1p", "expm1", "erfc"])
def test_every_rank(name: str) -> None:
    for rank in range(6):
        check(function(name), torch.rand([2, 1, 3, 1, 2][:rank]), compile=rank == 0)


def test_log1p_and_expm1_keep_tiny_values() -> None:
    """log(1 + 1e-7) computed from 1 + 1e-7 would be off by a fifth."""
    tiny = torch.tensor([1e-7, -3e-7, 1e-12, 4e-4])
    for name in ("log1p", "expm1"):
        check(function(name), tiny, atol=0)


def test_erfc_keeps_its_tail() -> None:
    """1 - erf(5) is 0 in float32; erfc(5) is 1.5e-12. x^2 = 64 carries 64 * 2^-24 into the
    exponent.
    """
    check(function("erfc"), torch.tensor([2.0, 3.5, 5.0, 8.0, -4.0]), atol=0, rtol=1e-5)
