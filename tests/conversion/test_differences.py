"""torch.diff along any axis, several times, with values before and after."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.conversion.harness import check
from tests.conversion.test_shape import sample

CASES: dict[str, Callable[..., torch.Tensor]] = {
    "the last axis": lambda x: x.diff(),
    "the first axis": lambda x: x.diff(dim=0),
    "twice": lambda x: x.diff(2),
    "no time": lambda x: x.diff(0).flip(0),
    "with an end": lambda x: x.diff(append=x[:, :1]),
    "with both ends": lambda x: x.diff(prepend=x[:, -1:], append=x[:, :2]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.uint8])
@pytest.mark.parametrize("name", CASES)
def test_neighbors_are_subtracted(name: str, dtype: torch.dtype) -> None:
    check(CASES[name], sample(3, 5, dtype=dtype), compile=name == "twice")


def test_neighbors_along_a_dynamic_axis() -> None:
    check(
        lambda x: x.diff(),
        sample(3, 5),
        dynamic={0: {0: "n", 1: "w"}},
        more=[(sample(1, 2),), (sample(2, 9),)],
    )
