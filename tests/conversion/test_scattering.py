"""Writes at indices against torch: scatter, index_put, masks, and sums if several values have one
index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, convert
from tests.conversion.test_indexing import MASK, ids
from tests.conversion.test_shape import DTYPES, sample

Tensors = tuple[torch.Tensor, ...]


def put(
    x: torch.Tensor, indices: Any, values: Any, accumulate: bool = False
) -> torch.Tensor:
    """x[indices] = values, as a graph's index_put."""
    return torch.index_put(x, indices, values, accumulate)


def written(x: torch.Tensor, key: Any, values: Any) -> torch.Tensor:
    x = x.clone()
    x[key] = values
    return x


CASES: dict[str, tuple[Callable[..., Any], Tensors]] = {
    "scatter": (
        lambda x, i, s: x.scatter(1, i, s),
        (sample(2, 4), ids([[3, 0], [1, 2]]), sample(2, 2) + 99),
    ),
    "scatter of fewer rows": (
        lambda x, i, s: x.scatter(0, i, s),
        (sample(3, 4), ids([[2, 0]]), sample(2, 4) + 99),
    ),
    "scatter of a negative axis": (
        lambda x, i, s: x.scatter(-1, i, s),
        (sample(2, 4), ids([[3], [1]]), sample(2, 1)),
    ),
    "scatter at constant places": (
        lambda x, s: x.scatter(1, torch.tensor([[3], [1]]), s),
        (sample(2, 4), sample(2, 1)),
    ),
    "scatter of a value": (
        lambda x, i: x.scatter(1, i, 7.5),
        (sample(2, 4), ids([[3, 0], [1, 2]])),
    ),
    "scatter of three axes": (
        lambda x, i, s: x.scatter(1, i, s),
        (sample(2, 3, 4), torch.full((2, 1, 4), 2), sample(2, 1, 4)),
    ),
    "scatter of 0-d": (
        lambda x, i, s: x.scatter(0, i, s),
        (sample(), torch.tensor(0), sample() + 5),
    ),
    "scatter_add": (
        lambda x, i, s: x.scatter_add(1, i, s),
        (sample(2, 4), ids([[3, 3, 0], [1, 1, 1]]), sample(2, 3)),
    ),
    "scatter_add of fewer rows": (
        lambda x, i, s: x.scatter_add(0, i, s),
        (sample(3, 4), ids([[2, 0], [2, 1]]), sample(2, 4)),
    ),
    "scatter with reduce": (
        lambda x, i, s: x.scatter(1, i, s, reduce="multiply"),
        (sample(2, 4), ids([[3, 3, 0], [1, 1, 1]]), sample(2, 3)),
    ),
    "scatter of a value with reduce": (
        lambda x, i: x.scatter(1, i, 2.0, reduce="add"),
        (sample(2, 4), ids([[3, 3], [1, 0]])),
    ),
    "index_add": (
        lambda x, i, s: x.index_add(0, i, s),
        (sample(3, 4), ids(2, 0, 2, 2), sample(4, 4)),
    ),
    "index_add with alpha": (
        lambda x, i, s: x.index_add(1, i, s, alpha=-2),
        (sample(3, 4), ids(2, 2), sample(3, 2)),
    ),
    "index_add of three axes": (
        lambda x, i, s: x.index_add(1, i, s),
        (sample(2, 3, 2), ids(2, 2), sample(2, 2, 2)),
    ),
    "index_reduce": (
        lambda x, i, s: x.index_reduce(0, i, s, "amax", include_self=False),
        (sample(3, 2), ids(2, 0, 2), sample(3, 2) - 50),
    ),
    "index_copy": (
        lambda x, i, s: x.index_copy(1, i, s),
        (sample(2, 4), ids(3, 0), sample(2, 2) + 99),
    ),
    "index_fill": (lambda x, i: x.index_fill(1, i, -1), (sample(2, 4), ids(3, 0, -2))),
    "index_fill at constant places": (
        lambda x: x.index_fill(0, torch.tensor([1, -1]), 5),
        (sample(4, 2),),
    ),
    "index_fill of a tensor": (
        lambda x, i: x.index_fill(0, i, x[0, 0] + 1),
        (sample(4, 2), ids(3, 1)),
    ),
    "put": (lambda x, i, s: x.put(i, s), (sample(2, 3), ids(5, 0, -2), sample(3) + 99)),
    "put that adds": (
        lambda x, i, s: x.put(i, s, accumulate=True),
        (sample(2, 3), ids([[5, 5, 0]]), sample(1, 3)),
    ),
    "index_put": (
        lambda x, i, v: put(x, [i], v),
        (sample(4, 2), ids(3, 0), sample(2, 2) + 99),
    ),
    "index_put of a negative index": (
        lambda x, i, v: put(x, [i], v),
        (sample(4, 2), ids(-1, 0), sample(2, 2) + 99),
    ),
    "index_put of one row": (
        lambda x, i, v: put(x, [i], v),
        (sample(4, 2), ids(3, 0), sample(2) + 99),
    ),
    "index_put of a number": (
        lambda x, i: written(x, i, 9),
        (sample(4, 2), ids([[3], [0]])),
    ),
    "index_put of two indices": (
        lambda x, i, j, v: put(x, [i, j], v),
        (sample(3, 4), ids([[0], [2]]), ids(3, -2), sample(2, 2)),
    ),
    "index_put behind": (
        lambda x, i, v: written(x, (slice(None), i), v),
        (sample(2, 4, 3), ids(3, 0), sample(2, 2, 3) + 99),
    ),
    "index_put of two behind": (
        lambda x, i, j, v: written(x, (slice(None), i, j), v),
        (sample(2, 3, 4), ids(2, 0), ids(3, 1), sample(2, 2) + 99),
    ),
    "index_put with an axis between": (
        lambda x, i, j, v: written(x, (i, slice(None), j), v),
        (sample(2, 3, 4), ids(0, 1), ids(3, 1), sample(2, 3) + 99),
    ),
    "index_put of a constant mask": (lambda x: written(x, MASK, 5.0), (sample(3, 2),)),
    "index_put that adds": (
        lambda x, i, v: put(x, [i], v, True),
        (sample(4, 2), ids([[3, 0], [3, 3]]), sample(2, 2, 2)),
    ),
    "index_put that adds at two indices": (
        lambda x, i, j, v: put(x, [i, j], v, True),
        (sample(3, 4), ids(0, 2, 0), ids(3, 1, 3), sample(3)),
    ),
    "a mask": (lambda x: written(x, x > 2, 0.5), (sample(3, 4),)),
    "a mask of rows": (lambda x: written(x, x[:, 0] > 0, 0.5), (sample(3, 4),)),
    "a mask of rows and one row": (
        lambda x, v: written(x, x[:, 0] > 0, v),
        (sample(3, 4), sample(4) + 99),
    ),
    "a mask behind": (
        lambda x: written(x, (slice(None), x[0] > 0), 0.5),
        (sample(3, 4),),
    ),
    "a mask and a value for each": (
        lambda x, m, v: put(x, [m], v),
        (sample(3, 2), torch.tensor([True, False, True]), sample(2, 2) + 99),
    ),
    "a mask of everything and a value for each": (
        lambda x, m, v: put(x, [m], v),
        (
            sample(2, 3),
            torch.tensor([[True, False, True], [False, False, True]]),
            sample(3) + 99,
        ),
    ),
    "masked_scatter": (
        lambda x, m, s: x.masked_scatter(m, s),
        (
            sample(2, 3),
            torch.tensor([[True, False, True], [False, True, False]]),
            sample(4) + 99,
        ),
    ),
    "masked_scatter that broadcasts": (
        lambda x, m, s: x.masked_scatter(m, s),
        (sample(2, 3), torch.tensor([True, False, True]), sample(2, 3) + 99),
    ),
    "slice_scatter": (
        lambda x, s: torch.slice_scatter(x, s, 1, 1, -1),
        (sample(2, 5), sample(2, 3) + 99),
    ),
    "slice_scatter with a step": (
        lambda x, s: torch.slice_scatter(x, s, 0, 1, 5, 2),
        (sample(5, 2), sample(2, 2) + 99),
    ),
    "slice_scatter of everything": (
        lambda x, s: torch.slice_scatter(x, s, 0),
        (sample(2, 2), sample(2, 2) + 99),
    ),
    "select_scatter": (
        lambda x, s: torch.select_scatter(x, s, 1, -2),
        (sample(2, 4), sample(2) + 99),
    ),
    "diagonal_scatter": (
        lambda x, s: torch.diagonal_scatter(x, s),
        (sample(3, 4), sample(3) + 99),
    ),
    "diagonal_scatter of other axes": (
        lambda x, s: torch.diagonal_scatter(x, s, -1, 2, 0),
        (sample(3, 2, 4), sample(2, 3) + 99),
    ),
}
COMPILED = (
    "scatter",
    "scatter_add",
    "index_put of two indices",
    "a mask and a value for each",
    "masked_scatter",
    "index_add",
)


@pytest.mark.parametrize("name", CASES)
def test_scattered_values_match_torch(name: str) -> None:
    function, inputs = CASES[name]
    check(function, *inputs, compile=name in COMPILED)


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("how", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float16])
def test_reductions_with_and_without_include_self(
    dtype: torch.dtype, how: str, include_self: bool
) -> None:
    x, src = sample(2, 4, dtype=dtype), sample(2, 3, dtype=dtype)
    check(
        lambda x, i, s: x.scatter_reduce(1, i, s, how, include_self=include_self),
        x,
        ids([[3, 3, 0], [1, 1, 1]]),
        src,
        compile=how == "mean",
    )


@pytest.mark.parametrize("how", ["amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int8])
def test_rows_without_index_are_unchanged(dtype: torch.dtype, how: str) -> None:
    """The index selects only the first row."""
    x, src = sample(3, 4, dtype=dtype), sample(1, 3, dtype=dtype)
    check(lambda x, i, s: x.scatter_reduce(1, i, s, how), x, ids([[3, 3, 0]]), src)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_can_be_written(dtype: torch.dtype) -> None:
    check(
        lambda x, i: (
            x.scatter(1, i, x[:, :1]),
            x.index_fill(1, i[:, 0], 1),
            torch.index_put(x, [i[:, 0]], x[0]),
        ),
        sample(2, 4, dtype=dtype),
        ids([[1], [0]]),
    )


def test_infinite_values_affect_only_their_index() -> None:
    src = torch.tensor([float("-inf"), 1.0, float("inf")])
    check(lambda x, i, s: x.index_add(0, i, s), torch.zeros(4), ids(0, 1, 3), src)


DYNAMIC: dict[str, tuple[Callable[..., Any], Tensors, list[Tensors]]] = {
    "scatter": (
        lambda x, i: x.scatter(1, i, x),
        (sample(2, 4), ids([[3, 0], [1, 2]])),
        [(sample(1, 1), ids([[0]])), (sample(3, 5), ids([[4, 1, 0]]))],
    ),
    "scatter of a value": (
        lambda x, i: x.scatter(1, i, 5),
        (sample(2, 4), ids([[3, 0], [1, 2]])),
        [(sample(1, 1), ids([[0]])), (sample(3, 5), ids([[4, 1, 0]]))],
    ),
    "scatter_add": (
        lambda x, i: x.scatter_add(1, i, x),
        (sample(2, 4), ids([[3, 3], [1, 1]])),
        [(sample(1, 1), ids([[0]])), (sample(3, 5), ids([[4, 1, 1]]))],
    ),
    "index_put": (
        lambda x, i: torch.index_put(x, [i[:, 0]], x[:1]),
        (sample(2, 4), ids([[-2], [1]])),
        [(sample(1, 1), ids([[0]])), (sample(3, 5), ids([[-3], [2], [0]]))],
    ),
    "index_put of two": (
        lambda x, i: torch.index_put(x, [i, i], torch.tensor(9.0)),
        (sample(2, 4), ids([[-2], [1]])),
        [(sample(1, 1), ids([[0]])), (sample(3, 5), ids([[-3], [2], [0]]))],
    ),
    "index_fill": (
        lambda x, i: x.index_fill(1, i[:, 0], 5),
        (sample(2, 4), ids([[3], [-4]])),
        [(sample(1, 1), ids([[0]])), (sample(3, 5), ids([[-5], [4]]))],
    ),
    "a mask": (
        lambda x, i: written(x, x > 2, 0.5) + i[0, 0],
        (sample(2, 4), ids([[0]])),
        [(sample(1, 1), ids([[0]])), (sample(3, 5), ids([[4]]))],
    ),
    "slice_scatter": (
        lambda x, i: torch.slice_scatter(x, x[:, 1:] + 9, 1, 0, -1) + i[0, 0],
        (sample(2, 4), ids([[0]])),
        [(sample(1, 2), ids([[0]])), (sample(3, 5), ids([[4]]))],
    ),
    "diagonal_scatter": (
        lambda x, i: torch.diagonal_scatter(x, x.diagonal() + 9) + i[0, 0],
        (sample(2, 4), ids([[0]])),
        [(sample(1, 2), ids([[0]])), (sample(3, 1), ids([[4]]))],
    ),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_axes_are_written_at_every_size(name: str) -> None:
    function, inputs, more = DYNAMIC[name]
    check(
        function,
        *inputs,
        dynamic={0: {0: "n", 1: "w"}, 1: {0: "m", 1: "k"}},
        spans={"n": (1, 2, 4), "w": (1, 4, 8), "m": (1, 2, 4), "k": (1, 2, 4)},
        more=more,
    )


def test_comparisons_beyond_memory_are_refused() -> None:
    with pytest.raises(UnsupportedOperators, match="comparisons in memory"):
        convert(
            lambda x, i: x.scatter_add(0, i, i.float()),
            [torch.zeros(100000), torch.zeros(100000, dtype=torch.int64)],
        )
