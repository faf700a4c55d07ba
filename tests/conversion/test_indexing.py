"""Embedding, gather, index and their relatives against torch: negative ones, several, None between,
masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from builder.conversion import nonzero
from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, convert
from tests.conversion.test_shape import DTYPES, sample

Tensors = tuple[torch.Tensor, ...]


def ids(*values: Any, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(
        values if len(values) != 1 or not isinstance(values[0], list) else values[0],
        dtype=dtype,
    )


MASK = torch.tensor([True, False, True])
CASES: dict[str, tuple[Callable[..., Any], Tensors]] = {
    "embedding": (
        lambda i: torch.nn.functional.embedding(i, sample(5, 3)),
        (ids([[0, 4], [2, 2]]),),
    ),
    "embedding of int32": (
        lambda i: torch.nn.functional.embedding(i, sample(5, 3), padding_idx=1),
        (ids(1, 4, dtype=torch.int32),),
    ),
    "embedding of a 0-d index": (
        lambda i: torch.nn.functional.embedding(i, sample(5, 3)),
        (torch.tensor(3),),
    ),
    "embedding of a computed weight": (
        lambda i, w: torch.nn.functional.embedding(i, w.relu()),
        (ids(1, 0), sample(3, 2)),
    ),
    "index_select": (lambda x, i: x.index_select(1, i), (sample(2, 4), ids(3, 0, 0))),
    "index_select by a constant": (
        lambda x: x.index_select(-1, torch.tensor([2, 1])),
        (sample(2, 4),),
    ),
    "index_select by int32": (
        lambda x, i: x.index_select(0, i),
        (sample(4, 2), ids(3, 1, dtype=torch.int32)),
    ),
    "gather": (
        lambda x, i: x.gather(1, i),
        (sample(2, 4), ids([[0, 3, 3], [1, 0, 2]])),
    ),
    "gather along the first axis": (
        lambda x, i: x.gather(0, i),
        (sample(3, 2), ids([[2, 0]])),
    ),
    "gather of fewer rows": (
        lambda x, i: x.gather(-1, i),
        (sample(3, 4), ids([[2, 0]])),
    ),
    "gather of three axes": (
        lambda x, i: x.gather(1, i),
        (sample(2, 3, 4), torch.full((2, 1, 3), 2)),
    ),
    "gather of 0-d": (lambda x, i: x.gather(0, i), (sample(), torch.tensor(0))),
    "take_along_dim": (
        lambda x, i: x.take_along_dim(i, 1),
        (sample(2, 4), ids([[0, -1], [1, 0]])),
    ),
    "take_along_dim that broadcasts": (
        lambda x, i: x.take_along_dim(i, 1),
        (sample(2, 4), ids([[3, 0]])),
    ),
    "take_along_dim that broadcasts the data": (
        lambda x, i: x.take_along_dim(i, 0),
        (sample(3, 1), ids([[2, 0, 1]])),
    ),
    "take_along_dim without dim": (
        lambda x, i: x.take_along_dim(i),
        (sample(2, 3), ids(5, 1)),
    ),
    "take": (lambda x, i: x.take(i), (sample(2, 3), ids([[5, 0], [-1, -6]]))),
    "one index": (lambda x, i: x[i], (sample(4, 2), ids(3, 0, 3))),
    "one negative index": (lambda x, i: x[i], (sample(4, 2), ids(-1, 0, -4))),
    "one index of two axes": (
        lambda x, i: x[:, i],
        (sample(2, 4, 2), ids([[0, 3], [2, -2]])),
    ),
    "a 0-d index": (lambda x, i: x[i], (sample(4, 2), torch.tensor(-2))),
    "a constant index": (lambda x: x[:, [2, 0, -1]], (sample(2, 4),)),
    "two indices": (lambda x, i, j: x[i, j], (sample(3, 4, 2), ids(0, -1), ids(3, -4))),
    "two indices that broadcast": (
        lambda x, i, j: x[i, j],
        (sample(3, 4), ids([[0], [2]]), ids(1, 3, 0)),
    ),
    "two indices behind": (
        lambda x, i, j: x[:, i, j],
        (sample(2, 3, 4), ids(0, 2), ids(3, 1)),
    ),
    "two indices with an axis between": (
        lambda x, i, j: x[i, :, j],
        (sample(2, 3, 4), ids(0, 1), ids(3, 1)),
    ),
    "two indices with a slice before and between": (
        lambda x, i, j: x[:, i, :, j],
        (sample(2, 3, 2, 4), ids(0, -1), ids(3, 1)),
    ),
    "three indices": (lambda x, i: x[i, i, i], (sample(3, 3, 3), ids(0, 2, 1))),
    "a constant and a computed index": (
        lambda x, i: x[torch.tensor([0, 1]), i],
        (sample(2, 4), ids(3, -1)),
    ),
    "an index of int32": (
        lambda x, i: x[i],
        (sample(4), ids(3, -1, dtype=torch.int32)),
    ),
    "a constant mask": (lambda x: x[MASK], (sample(3, 2),)),
    "a constant mask behind": (lambda x: x[:, MASK], (sample(2, 3),)),
    "a constant mask of two axes": (
        lambda x: x[torch.eye(2, 3) > 0],
        (sample(2, 3, 2),),
    ),
    "a constant mask and an index": (
        lambda x, i: x[MASK, i],
        (sample(3, 2), ids(1, 0)),
    ),
    "a constant mask of uint8 is no index": (
        lambda x: torch.ops.aten.index(x, [MASK.to(torch.uint8)]),
        (sample(3, 2),),
    ),
}


@pytest.mark.filterwarnings("ignore:.*uint8.*")
@pytest.mark.parametrize("name", CASES)
def test_indexed_values_match_torch(name: str) -> None:
    function, inputs = CASES[name]
    check(
        function,
        *inputs,
        compile=name in ("embedding", "gather", "two indices", "one negative index"),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_can_be_gathered(dtype: torch.dtype) -> None:
    check(
        lambda x, i: (x[i, i], x.index_select(0, i), x.gather(1, i.view(2, 1))),
        sample(2, 4, dtype=dtype),
        ids(1, 0),
    )


DYNAMIC: dict[str, tuple[Callable[..., Any], Tensors, list[Tensors]]] = {
    "embedding": (
        lambda x, i: torch.nn.functional.embedding(i, x),
        (sample(5, 4), ids([[0, 1], [2, 3]])),
        [(sample(5, 8), ids([[4]]))],
    ),
    "negative indices": (
        lambda x, i: x[:, i[0]],
        (sample(5, 4), ids([[0, -1, -4]])),
        [(sample(3, 8), ids([[7, -8]]))],
    ),
    "two indices": (
        lambda x, i: x[i, i],
        (sample(5, 4), ids([[0, -1], [2, 3]])),
        [(sample(3, 8), ids([[2, -3]]))],
    ),
    "a constant negative index": (
        lambda x, i: x[:, [-1, 0]] + i[0, 0],
        (sample(5, 4), ids([[0]])),
        [(sample(3, 8), ids([[1]]))],
    ),
    "gather": (
        lambda x, i: x.gather(1, i),
        (sample(2, 4), ids([[0, 3], [1, 1]])),
        [(sample(3, 8), ids([[7, 0, 1]]))],
    ),
    "take_along_dim": (
        lambda x, i: x.take_along_dim(i, 1),
        (sample(2, 4), ids([[0, -1], [1, 1]])),
        [(sample(1, 8), ids([[7, 0, -8]]))],
    ),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_indices_are_relative_to_actual_axis_size(name: str) -> None:
    function, inputs, more = DYNAMIC[name]
    check(
        function,
        *inputs,
        dynamic={0: {0: "n", 1: "w"}, 1: {0: "m", 1: "k"}},
        spans={"n": (1, 5, 9), "w": (1, 4, 9), "m": (1, 1, 9), "k": (1, 2, 9)},
        more=more,
    )


def test_computed_mask_is_not_read_as_integers() -> None:
    """Refused on RTX, which has no kernel for it; on TensorRT it selects."""
    if nonzero.available():
        check(lambda x: x[x > 0], torch.tensor([-1.0, 2.0, 0.0, 3.0]), compile=False)
        return
    with pytest.raises(UnsupportedOperators, match="mask that the network computes"):
        convert(lambda x: x[x > 0], [sample(4)])
