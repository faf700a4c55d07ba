"""Half precision as PyTorch computes it: products with numbers, and statistics, in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, convert

MASK = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
ROWS = torch.linspace(-300, 300, 512).reshape(2, 256)
"""The square of 300 is beyond float16's range."""

NUMBERS: dict[str, Callable[[Tensor], Any]] = {
    "a mask times a number beyond the range": lambda x: (1.0 - x) * -1e9,
    "the mask added to logits": lambda x: (x * 0.5 + (1.0 - x) * -1e9).softmax(-1),
    "a product that returns into the range": lambda x: x * 1e-3 * 1e6,
    "a quotient by a number beyond the range": lambda x: x * 60000.0 / 1e5,
    "a quotient by a number that rounds to 0": lambda x: (1.0 - x) / 1e-9,
    "a sum, for which torch rounds the number": lambda x: x * -60000.0 + 1e5,
    "a difference, for which torch rounds the number": lambda x: 1e5 - x * 60000.0,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_rounded_to_half_only_in_sums(
    name: str, dtype: torch.dtype
) -> None:
    check(NUMBERS[name], MASK.to(dtype), compile=dtype == torch.float16)


def test_numbers_within_the_range_add_no_casts() -> None:
    conversion = check(lambda x: x * 0.1 + 1e-6, MASK.half(), compile=False)
    layers = [
        conversion.network.get_layer(i) for i in range(conversion.network.num_layers)
    ]
    assert not [layer.name for layer in layers if layer.type.name == "CAST"]


STATISTICS: dict[str, Callable[[Tensor], Any]] = {
    "var": lambda x: x.var(1),
    "var_mean": lambda x: torch.var_mean(x, 1),
    "std over all": lambda x: x.std(),
    "norm": lambda x: x.norm(dim=1),
    "the 3-norm": lambda x: torch.linalg.vector_norm(x, 3, 1),
    "a matrix norm": lambda x: torch.linalg.matrix_norm(x, 1),
    "normalize": lambda x: F.normalize(x, dim=1),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0) * 0.5, dim=1),
    "pairwise_distance": lambda x: F.pairwise_distance(x, -x),
    "instance_norm": lambda x: F.instance_norm(torch.cat([x, -x], 1).unsqueeze(1)),
    "batch statistics": lambda x: F.batch_norm(x, None, None, training=True),
    "lerp": lambda x: torch.lerp(x * 200, x * -200, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x * 200, x, value=1e-4),
    "addcdiv": lambda x: torch.addcdiv(x, x * 200, x * 2**-10, value=1e-3),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_are_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    check(STATISTICS[name], ROWS.to(dtype), compile=dtype == torch.float16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_remainders_round_the_number_and_quotients_do_not(dtype: torch.dtype) -> None:
    x = torch.tensor([1.0, 0.3, 0.7, 3.0, -0.7, -5.7, -3.8]).to(dtype)
    check(
        lambda x: (
            x % 0.1,
            torch.fmod(x, 0.1),
            torch.div(x, 0.1, rounding_mode="floor"),
            torch.div(x, 0.1, rounding_mode="trunc"),
            7.3 % x,
        ),
        x,
        rtol=0,
        atol=0,
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_truncated_quotients_by_tensors_are_rounded_to_half(dtype: torch.dtype) -> None:
    """A divisor of one element is not rounded, and neither is its quotient."""
    x = torch.tensor([-105.75, 77.5, 2.998, 300.25]).to(dtype)
    divisors = torch.tensor([0.1449, 0.1, 0.9995, 0.3]).to(dtype)
    for divisor in (divisors, divisors[:1], divisors[0], torch.tensor(0.1449)):
        check(truncated_quotient, x, divisor, rtol=0, atol=0, compile=False)
    integers = torch.tensor([4099, 4101, 6001, 8191])
    check(truncated_quotient, integers, divisors, rtol=0, atol=0, compile=False)
    rows = divisors.reshape(2, 2)
    check(truncated_quotient, rows * 300, rows, dynamic={0: {0: "n"}, 1: {0: "n"}})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_floored_quotients_of_tensors_round_each_step(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, divisors = (torch.randn(4000, generator=generator).to(dtype) for _ in "xy")
    special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 7, -0.3, 6e-8])
    x = torch.cat([x * 50, *special.to(dtype).expand(8, 8)])
    divisors = torch.cat([divisors, *special.to(dtype)[:, None].expand(8, 8)])

    def floored(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x // y, x[:9] // y[4:5], x[-3] // y[:64], 7.3 // y

    check(floored, x, divisors, rtol=0, atol=0, compile=dtype == torch.float16)


def truncated_quotient(x: Tensor, y: Tensor) -> Tensor:
    return torch.div(x, y, rounding_mode="trunc")


def test_rounded_quotients_by_one_or_several_numbers_are_refused() -> None:
    x, divisors = torch.ones(4).half(), torch.ones(2).half()
    with pytest.raises(UnsupportedOperators, match="may have one or several"):
        convert(truncated_quotient, (x[:1], divisors), dynamic={1: {0: "n"}})
    with pytest.raises(UnsupportedOperators, match="may have one or several"):
        convert(lambda x, y: x // y, (x[:1], divisors), dynamic={1: {0: "n"}})
    with pytest.raises(UnsupportedOperators, match="may have one or several"):
        convert(lambda x: truncated_quotient(x, divisors[:1].expand(4)), (x,))
    with pytest.raises(UnsupportedOperators, match="may have one or several"):
        convert(lambda x, y: truncated_quotient(x, y.expand(4)), (x, x[:1]))
