"""one_hot, bucketize, searchsorted and operators whose size depends on data, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from builder.conversion import nonzero
from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, convert
from tests.conversion.test_indexing import ids
from tests.conversion.test_shape import sample

NAN = float("nan")
EDGES = torch.tensor([-1.0, 0.0, 0.0, 2.5])
VALUES = torch.tensor([[-5.0, -1.0, 0.0], [0.1, 2.5, 9.0]])

CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "one_hot": (lambda x: torch.nn.functional.one_hot(x, 4), (ids([[0, 3], [1, 1]]),)),
    "one_hot of 0-d": (lambda x: torch.nn.functional.one_hot(x, 3), (torch.tensor(2),)),
    "bucketize": (lambda x: torch.bucketize(x, EDGES), (VALUES,)),
    "bucketize to the right": (
        lambda x: torch.bucketize(x, EDGES, right=True),
        (VALUES,),
    ),
    "bucketize of int32": (
        lambda x: torch.bucketize(x, EDGES, out_int32=True),
        (VALUES,),
    ),
    "bucketize of NaN": (
        lambda x: torch.bucketize(x, EDGES),
        (torch.tensor([NAN, 0.0]),),
    ),
    "bucketize of NaN to the right": (
        lambda x: torch.bucketize(x, EDGES, right=True),
        (torch.tensor([NAN, 0.0]),),
    ),
    "bucketize of integers": (
        lambda x: torch.bucketize(x, torch.tensor([0, 2, 2, 5])),
        (ids(-1, 0, 2, 9),),
    ),
    "bucketize of 0-d": (lambda x: torch.bucketize(x, EDGES), (torch.tensor(0.5),)),
    "bucketize of a number": (lambda x: torch.bucketize(0.5, x), (EDGES,)),
    "searchsorted": (lambda s, x: torch.searchsorted(s, x), (EDGES, VALUES)),
    "searchsorted of rows": (
        lambda s, x: torch.searchsorted(s, x),
        (torch.stack([EDGES, EDGES + 1]), VALUES),
    ),
    "searchsorted to the right": (
        lambda s, x: torch.searchsorted(s, x, side="right", out_int32=True),
        (torch.stack([EDGES, EDGES + 1]), VALUES),
    ),
    "searchsorted of a number": (
        lambda s: torch.searchsorted(s, 0.0, right=True),
        (EDGES,),
    ),
    "searchsorted with a sorter": (
        lambda s, x, i: torch.searchsorted(s, x, sorter=i),
        (EDGES.flip(0), VALUES, torch.tensor([3, 2, 1, 0])),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_counts_match_torch(name: str) -> None:
    function, inputs = CASES[name]
    check(
        function,
        *inputs,
        compile=name in ("one_hot", "bucketize", "searchsorted of rows"),
    )


def test_one_hot_and_bucketize_of_a_dynamic_axis() -> None:
    check(
        lambda x: (
            torch.bucketize(x, EDGES),
            torch.nn.functional.one_hot(x.abs().long(), 30),
            torch.nn.functional.one_hot(x.abs().long() % 3, x.size(1) + 2),
        ),
        sample(2, 4).clamp(-9, 9),
        dynamic={0: {0: "n", 1: "w"}},
        more=[(sample(1, 1),), (sample(3, 6).clamp(-9, 9),)],
    )


def test_one_hot_of_an_unknown_number_of_classes_is_refused() -> None:
    with pytest.raises(UnsupportedOperators, match="num_classes"):
        convert(lambda x: torch.nn.functional.one_hot(x), [ids(0, 1)])
    with pytest.raises(UnsupportedOperators, match="num_classes"):
        convert(
            lambda x: torch.nn.functional.one_hot(x, x.size(0) - 2),
            [torch.tensor([0, 0, 0])],
            dynamic={0: {0: "n"}},
        )


DATA: dict[str, Callable[..., Any]] = {
    "nonzero": lambda x: x.nonzero(),
    "argwhere": lambda x: torch.argwhere(x),
    "nonzero of each axis": lambda x: torch.nonzero(x, as_tuple=True),
    "where of a condition": lambda x: torch.where(x > 0),
    "rows where a condition holds": lambda x: x[torch.where(x[:, 0] > 0)[0]],
    "masked_select": lambda x: x.masked_select(x > 0),
    "masked_select that broadcasts": lambda x: x.masked_select(x[:1] > 0),
    "masked_select without axes": lambda x: x[0, 0].masked_select(x[0, 1] > 0),
    "a mask as an index": lambda x: x[x > 0],
    "a mask of rows as an index": lambda x: x[x[:, 0] > 0],
    "a mask behind as an index": lambda x: x[:, x[0] > 0],
    "a size that the data decided": lambda x: torch.arange(x[x > 0].size(0)),
}


@pytest.mark.parametrize("name", DATA)
def test_data_dependent_sizes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonzero, "available", lambda: True)
    check(
        DATA[name],
        sample(2, 4),
        dynamic={0: {0: "n"}},
        more=[(sample(1, 4),), (-sample(3, 4).abs(),)],
        compile=False,
    )


@pytest.mark.parametrize(
    "name",
    ["nonzero", "where of a condition", "masked_select", "a mask as an index"],
)
def test_data_dependent_sizes_are_refused_without_kernel(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nonzero, "available", lambda: False)
    with pytest.raises(UnsupportedOperators, match="NonZero"):
        convert(DATA[name], [sample(2, 4)])
