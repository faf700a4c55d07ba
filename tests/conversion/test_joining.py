"""cat, stack and their relatives against torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.conversion.harness import check
from tests.conversion.test_shape import sample

Tensors = tuple[torch.Tensor, ...]

CASES: dict[str, tuple[Callable[..., torch.Tensor], Tensors]] = {
    "cat": (lambda x, y: torch.cat([x, y]), (sample(2, 3), sample(1, 3))),
    "cat of a negative axis": (
        lambda x, y: torch.cat([x, y], -1),
        (sample(2, 3), sample(2, 1)),
    ),
    "cat of one": (lambda x: torch.cat([x]).relu(), (sample(2, 3),)),
    "cat with a constant": (
        lambda x: torch.cat([x, torch.ones(2, 2)], 1),
        (sample(2, 3),),
    ),
    "cat of int64 and float32": (
        lambda x, y: torch.cat([x, y]),
        (sample(2, 3, dtype=torch.int64), sample(2, 3)),
    ),
    "cat of int32 and int64": (
        lambda x, y: torch.cat([x, y]),
        (sample(3, dtype=torch.int32), sample(2, dtype=torch.int64)),
    ),
    "cat of bool and uint8": (
        lambda x, y: torch.cat([x, y]),
        (sample(3, dtype=torch.bool), sample(2, dtype=torch.uint8)),
    ),
    "cat of float16 and int64": (
        lambda x, y: torch.cat([x, y]),
        (sample(3, dtype=torch.float16), sample(2, dtype=torch.int64)),
    ),
    "cat with an empty vector": (
        lambda x: torch.cat([torch.zeros(0), x], 1),
        (sample(2, 3),),
    ),
    "cat with an empty axis": (lambda x: torch.cat([x[:, :0], x], 1), (sample(2, 3),)),
    "cat of the same tensor": (lambda x: torch.cat([x, x, x], 1), (sample(2, 3),)),
    "stack": (lambda x, y: torch.stack([x, y]), (sample(2, 3), sample(2, 3))),
    "stack at the end": (
        lambda x, y: torch.stack([x, y], -1),
        (sample(2, 3), sample(2, 3)),
    ),
    "stack of 0-d": (lambda x, y: torch.stack([x, y]), (sample(), sample())),
    "stack of int and float": (
        lambda x, y: torch.stack([x, y], 1),
        (sample(2, dtype=torch.int32), sample(2)),
    ),
    "hstack": (lambda x, y: torch.hstack([x, y]), (sample(2, 3), sample(2, 1))),
    "hstack of vectors": (lambda x, y: torch.hstack([x, y]), (sample(2), sample(3))),
    "hstack of 0-d": (lambda x, y: torch.hstack([x, y]), (sample(), sample())),
    "vstack": (lambda x, y: torch.vstack([x, y]), (sample(2, 3), sample(3))),
    "dstack": (lambda x, y: torch.dstack([x, y]), (sample(2, 3), sample(2, 3))),
    "dstack of vectors": (lambda x, y: torch.dstack([x, y]), (sample(3), sample(3))),
    "column_stack": (
        lambda x, y: torch.column_stack([x, y]),
        (sample(2), sample(2, 3)),
    ),
    "atleast_1d": (lambda x: torch.atleast_1d(x), (sample(),)),
    "atleast_2d": (lambda x: torch.atleast_2d(x), (sample(3),)),
    "atleast_3d of a vector": (lambda x: torch.atleast_3d(x), (sample(3),)),
    "atleast_3d of a matrix": (lambda x: torch.atleast_3d(x), (sample(3, 2),)),
    "atleast_3d of 0-d": (lambda x: torch.atleast_3d(x), (sample(),)),
    "atleast_3d of four axes": (
        lambda x: torch.atleast_3d(x).relu(),
        (sample(3, 2, 1, 2),),
    ),
    "atleast_2d of several": (
        lambda x, y: torch.cat(torch.atleast_2d(x, y), 1),
        (sample(), sample(3)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_joined_dtype_matches_torch(name: str) -> None:
    function, inputs = CASES[name]
    check(
        function,
        *inputs,
        compile=name
        in ("cat", "stack", "cat of bool and uint8", "cat with an empty axis"),
    )


def test_dynamic_axes_are_concatenated_at_every_size() -> None:
    check(
        lambda x, y: torch.cat([x, y, x], 1).view(x.size(0), -1, 2),
        sample(2, 2, 2),
        sample(2, 3, 2),
        dynamic={0: {0: "n", 1: "t"}, 1: {0: "n", 1: "s"}},
        more=[(sample(1, 1, 2), sample(1, 6, 2)), (sample(4, 4, 2), sample(4, 1, 2))],
    )


def test_dynamic_axes_are_stacked() -> None:
    check(
        lambda x, y: torch.stack([x, y], 1),
        sample(2, 3),
        sample(2, 3),
        dynamic={0: {0: "n"}, 1: {0: "n"}},
        more=[(sample(1, 3), sample(1, 3))],
    )
