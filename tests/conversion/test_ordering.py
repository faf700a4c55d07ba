"""Top-k, sorting and arg-extremes. Samples without ties: TensorRT states no order among equal
values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, convert

SHAPES = [
    ((6,), 0),
    ((3, 4), -1),
    ((4, 3), 0),
    ((2, 3, 4), 1),
    ((2, 1, 3, 2, 2), 0),
    ((2, 2, 1, 2, 1, 3), 1),
]


def distinct(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    order = torch.randperm(
        torch.Size(shape).numel(), generator=torch.Generator().manual_seed(3)
    )
    return (order - order.numel() // 2).reshape(shape).to(dtype)


ORDERINGS: dict[str, Callable[..., Any]] = {
    "topk": lambda x, d: torch.topk(x, min(2, x.shape[d]), d),
    "topk, smallest": lambda x, d: torch.topk(x, min(2, x.shape[d]), d, largest=False),
    "sort": lambda x, d: torch.sort(x, d),
    "sort, stable, descending": lambda x, d: torch.sort(
        x, dim=d, descending=True, stable=True
    ),
    "argsort": lambda x, d: torch.argsort(x, d),
    "argsort, stable": lambda x, d: torch.argsort(
        x, dim=d, descending=True, stable=True
    ),
    "msort": lambda x, d: torch.msort(x),
    "max": lambda x, d: torch.max(x, d),
    "min, keepdim": lambda x, d: torch.min(x, d, keepdim=True),
    "max, values only": lambda x, d: torch.max(x, d).values,
    "argmax": torch.argmax,
    "argmin, keepdim": lambda x, d: torch.argmin(x, d, keepdim=True),
    "kthvalue": lambda x, d: torch.kthvalue(x, x.shape[d], d),
}


@pytest.mark.parametrize("name", ORDERINGS)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_every_rank_and_axis(name: str, shape: tuple[int, ...], axis: int) -> None:
    check(
        lambda x: ORDERINGS[name](x, axis),
        distinct(*shape),
        compile=len(shape) in (1, 5, 6),
    )


@pytest.mark.parametrize("name", ORDERINGS)
@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.uint8, torch.float16]
)
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    x = (
        distinct(3, 5).abs() * 2 + (distinct(3, 5) > 0)
        if dtype == torch.uint8
        else distinct(3, 5)
    )
    check(lambda x: ORDERINGS[name](x, 1), x.to(dtype), compile=dtype != torch.uint8)


@pytest.mark.parametrize("name", ["sort", "argsort", "max", "argmax", "topk"])
def test_dynamic_axes(name: str) -> None:
    def function(x: torch.Tensor) -> Any:
        return torch.topk(x, 2, 0) if name == "topk" else ORDERINGS[name](x, 0)

    check(
        function,
        distinct(4, 3),
        dynamic={0: {0: "n", 1: "m"}},
        spans={"n": (2, 4, 8)},
        more=[(distinct(7, 1),)],
    )


def test_k_of_a_dynamic_size() -> None:
    graph = """
    graph(%x : Tensor):
      %axis : int = prim::Constant[value=1]()
      %two : int = prim::Constant[value=2]()
      %true : bool = prim::Constant[value=1]()
      %n : int = aten::size(%x, %axis)
      %k : int = aten::floordiv(%n, %two)
      %v : Tensor, %i : Tensor = aten::topk(%x, %k, %axis, %true, %true)
      return (%v, %i)
    """
    check(
        graph,
        distinct(2, 6),
        dynamic={0: {1: "n"}},
        spans={"n": (2, 6, 12)},
        more=[(distinct(2, 9),)],
    )


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3, 4)])
def test_of_the_whole_tensor(shape: tuple[int, ...]) -> None:
    for name in ("argmax", "argmin"):
        check(getattr(torch, name), distinct(*shape))
        check(
            lambda x, n=name: getattr(torch, n)(x, keepdim=True),
            distinct(*shape),
            compile=False,
        )
        check(
            getattr(torch, name),
            distinct(*shape),
            dynamic={0: {0: "n"}} if shape else None,
            compile=False,
        )


@pytest.mark.parametrize("name", ["sort", "max", "argmax", "topk"])
def test_zero_dimensional(name: str) -> None:
    functions = {"topk": lambda x: torch.topk(x, 1, 0)}
    check(functions.get(name, lambda x: ORDERINGS[name](x, 0)), torch.tensor(3.0))


def test_bools() -> None:
    check(
        lambda x: torch.max(x, 1).values, torch.tensor([[True, False], [False, False]])
    )
    check(
        lambda x: torch.sort(x, 1).values, torch.tensor([[True, False], [False, False]])
    )


def test_k_beyond_tensorrt_limit_is_refused() -> None:
    with pytest.raises(
        UnsupportedOperators, match="at most 3840 elements, this keeps 5000"
    ):
        convert(lambda x: torch.sort(x, 1), [torch.zeros(1, 5000)])
    with pytest.raises(UnsupportedOperators, match="3840"):
        convert(
            lambda x: torch.sort(x, 1), [torch.zeros(1, 3000)], dynamic={0: {1: "n"}}
        )
