"""Binary operators against torch, at odd shapes and mixed dtypes."""

from __future__ import annotations

import pytest
import torch

from tests.conversion.harness import check

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int32,
    torch.int64,
    torch.bool,
]


def sample(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 4).to(dtype)


@pytest.mark.parametrize("a", DTYPES)
@pytest.mark.parametrize("b", DTYPES)
def test_addition_promotes_dtypes_like_torch(a: torch.dtype, b: torch.dtype) -> None:
    check(lambda x, y: x + y, sample(a, 2, 3), sample(b, 2, 3, seed=1), compile=a == b)


@pytest.mark.parametrize(
    "shapes",
    [((3,), (2, 3)), ((2, 1, 4), (3, 1)), ((), (2, 2)), ((1, 1, 1, 1, 2), (3, 1, 2))],
)
def test_operands_of_different_rank_broadcast(
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    check(
        lambda x, y: x * y,
        sample(torch.float32, *shapes[0]),
        sample(torch.float32, *shapes[1], seed=1),
    )


def test_a_dynamic_axis_may_be_one_and_still_broadcasts() -> None:
    check(
        lambda x, y: x * y,
        sample(torch.float32, 4, 3),
        sample(torch.float32, 4, 3),
        dynamic={0: {0: "n"}, 1: {0: "m"}},
        more=[(sample(torch.float32, 1, 3), sample(torch.float32, 5, 3))],
    )
