"""Outputs that older converters are known to get wrong, one for each row, in the order of
docs/operators.md.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.conversion.harness import check

INTS = torch.tensor([[-7, -3, 0], [2, 5, 9]])
REALS = torch.tensor([[-2.5, -0.3, 0.0], [0.4, 1.5, 30.0]])
QUERY = torch.linspace(-2, 2, 48).reshape(1, 2, 4, 6)
IMAGE = torch.linspace(-1, 3, 96).reshape(2, 3, 4, 4)
ROWS = {0: {0: "n"}}
ONE_ROW_AND_FIVE = [
    (torch.linspace(-3, 3, 3).reshape(1, 3),),
    (torch.linspace(-3, 3, 15).reshape(5, 3),),
]
SPANS = {"n": (1, 2, 5)}
SIGNED_ZEROS = torch.tensor(
    [[0.0, -0.0, 0.0, -0.0, 1.0, -1.0], [0.0, 0.0, -0.0, -0.0, 0.0, -0.0]]
)

FIXED: dict[str, tuple[Any, tuple[Tensor, ...]]] = {
    "a custom attention scale": (
        lambda q: F.scaled_dot_product_attention(q, q * 2, q - 1, scale=0.3),
        (QUERY,),
    ),
    "integers less than a fraction": (lambda x: x < 2.5, (INTS,)),
    "integers equal to a fraction": (lambda x: (x == 2.5) | (x >= -3.5), (INTS,)),
    "exact gelu": (lambda x: F.gelu(x), (REALS,)),
    "floor division of negative integers": (lambda x: x // 2, (INTS,)),
    "floor division by a negative integer": (
        lambda x: torch.floor_divide(x, torch.tensor([-2, 3, -4])),
        (INTS,),
    ),
    "batch_norm without running statistics": (
        lambda x: F.batch_norm(x, None, None, training=True),
        (IMAGE,),
    ),
    "elu's scale and input_scale": (
        lambda x: torch.ops.aten.elu(x, 1.2, 1.1, 0.7),
        (REALS,),
    ),
    "avg_pool's divisor_override": (
        lambda x: F.avg_pool2d(x, 3, 2, 1, False, True, 5),
        (IMAGE,),
    ),
    "the dtype of softmax": (lambda x: x.softmax(1, dtype=torch.float32), (INTS,)),
    "the dtype of sum": (lambda x: x.sum(1, dtype=torch.float32), (INTS,)),
    "the dtype of mean": (lambda x: x.mean(1, dtype=torch.float32), (INTS,)),
    "the dtype of prod": (lambda x: x.prod(1, dtype=torch.float32), (INTS,)),
    "the dtype of cumsum": (lambda x: x.cumsum(1, dtype=torch.float32), (INTS,)),
    "log_softmax where softmax underflows": (
        lambda x: x.log_softmax(1),
        (torch.tensor([[0.0, 300.0, -300.0]]),),
    ),
    "var by cancellation": (
        lambda x: x.var(1),
        (torch.tensor([[10000.0, 10001.0, 10002.0, 10003.0]]),),
    ),
    "integers stay so in add": (lambda x: x + 3, (INTS,)),
    "integers stay so in clamp": (lambda x: x.clamp(-2, 4), (INTS,)),
    "integers stay so in max": (lambda x: x.max(1), (INTS,)),
    "atan2 of zeros": (torch.atan2, (SIGNED_ZEROS[0], SIGNED_ZEROS[1])),
    "narrow to one keeps the axis": (lambda x: x.narrow(1, 1, 1), (REALS,)),
    "a slice from the end": (lambda x: x[:, -2:], (REALS,)),
    "a permutation by negative axes": (lambda x: x.permute(-1, 0, -3, -2), (IMAGE,)),
    "a scatter of a negative axis": (
        lambda x, i: x.scatter(-1, i, 5.0),
        (REALS, torch.tensor([[2], [0]])),
    ),
    "chunks of a negative axis": (lambda x: x.chunk(2, -1), (REALS,)),
    "any over 1 and -1": (
        lambda x: x.any(0),
        (torch.tensor([[1.0, 0.0], [-1.0, 0.0]]),),
    ),
    "any over integers 1 and -1": (
        lambda x: x.any(1),
        (torch.tensor([[1, -1], [0, 0]]),),
    ),
}


@pytest.mark.parametrize("mistake", FIXED)
def test_common_mistakes_with_static_shapes(mistake: str) -> None:
    function, inputs = FIXED[mistake]
    check(function, *inputs)


SPECIAL = torch.tensor([[1.5, torch.nan, -2.5, torch.inf], [-torch.inf, 0.0, 3.0, 2.5]])
DIVISORS = torch.tensor(
    [[-torch.inf, 2.0, torch.inf, torch.inf], [3.0, -torch.inf, torch.nan, -1]]
)
NOT_A_NUMBER: dict[str, Any] = {
    "median": lambda x: x.median(1),
    "median of all": lambda x: x.median(),
    "nanmedian": lambda x: x.nanmedian(1)[0],
    "quantile": lambda x: x.quantile(0.4, dim=1),
    "quantiles": lambda x: x.quantile(torch.tensor([0.1, 0.9]), dim=1, keepdim=True),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(1),
    "remainder": lambda x: torch.remainder(x, DIVISORS),
    "remainder by infinity": lambda x: torch.remainder(x, -torch.inf),
    "fmod": lambda x: torch.fmod(x, DIVISORS),
    "floor division": lambda x: torch.div(
        x.clamp(-4, 4), DIVISORS, rounding_mode="floor"
    ),
}


@pytest.mark.parametrize("name", NOT_A_NUMBER)
def test_nan_and_infinities(name: str) -> None:
    check(NOT_A_NUMBER[name], SPECIAL)


DYNAMIC: dict[str, Any] = {
    "a size in arithmetic": lambda x: x.reshape(x.size(0) * 3) * (x.size(0) + 1),
    "what has as many rows as x or one": lambda x: (
        x + x[: (x.size(0) + 1) // 2].sum(0, keepdim=True)
    ),
    "split": lambda x: torch.cat(x.split([1, 2], 1)[::-1], 1),
    "layer_norm": lambda x: F.layer_norm(
        x, (3,), torch.tensor([1.0, 2.0, 0.5]), torch.tensor([0.1, 0.0, -0.1])
    ),
}


@pytest.mark.parametrize("mistake", DYNAMIC)
def test_common_mistakes_with_dynamic_rows(mistake: str) -> None:
    check(DYNAMIC[mistake], REALS, dynamic=ROWS, spans=SPANS, more=ONE_ROW_AND_FIVE)


@pytest.mark.parametrize("cell", [nn.LSTMCell(3, 4), nn.GRUCell(3, 4)])
def test_recurrent_cells_with_a_dynamic_batch(cell: nn.Module) -> None:
    check(cell.eval(), REALS, dynamic=ROWS, spans=SPANS, more=ONE_ROW_AND_FIVE)


def test_a_dynamic_axis_of_one_broadcasts() -> None:
    """Two axes with different names: if one of them is 1, the result has the size of the other."""
    other = torch.tensor([[1.0, 2.0, 3.0]])
    more = [(REALS[:1], REALS), (REALS, REALS + 1), (REALS[:1], other)]
    check(
        lambda x, y: x * y, REALS, other, dynamic={0: {0: "n"}, 1: {0: "m"}}, more=more
    )


def test_dynamic_axis_split_matches_torch() -> None:
    check(
        lambda x: x.chunk(2, 0),
        REALS,
        dynamic=ROWS,
        spans={"n": (2, 2, 6)},
        more=[(torch.randn(5, 3),)],
    )
    check(
        lambda x: x.t().unbind(0),
        REALS,
        dynamic=ROWS,
        spans=SPANS,
        more=ONE_ROW_AND_FIVE,
    )
