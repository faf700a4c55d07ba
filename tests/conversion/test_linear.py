"""Matrix products against torch, for every pair of ranks.

Tolerance: sums of up to 60 products in another order, 60 * 6e-8.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from builder import UnsupportedOperators
from builder.engine.flavor import trt
from tests.conversion.harness import check

CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}


def integers(*shape: int) -> torch.Tensor:
    return torch.randint(-9, 9, shape)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "shape", [(3,), (2, 3), (2, 5, 3), (2, 1, 5, 3), (1, 2, 2, 2, 3)]
)
def test_a_linear_layer(shape: tuple[int, ...], bias: bool) -> None:
    module = nn.Linear(3, 4, bias=bias)
    check(module, torch.randn(shape), **CLOSE, compile=len(shape) < 4)
    if len(shape) > 1:
        dynamic = {0: {axis: f"a{axis}" for axis in range(len(shape) - 1)}}
        smaller = torch.randn(*(1 for _ in shape[:-1]), 3)
        check(
            module,
            torch.randn(shape),
            dynamic=dynamic,
            more=[(smaller,)],
            **CLOSE,
            compile=len(shape) == 3,
        )


def test_linear_with_tensors_for_weights() -> None:
    check(F.linear, torch.randn(2, 5, 3), torch.randn(4, 3), torch.randn(4), **CLOSE)
    check(F.linear, torch.randn(2, 3), torch.randn(3), **CLOSE)
    check(nn.Linear(3, 4).half(), torch.randn(2, 3).half(), rtol=4e-3, atol=2e-3)


MATRICES = [
    ((3,), (3,)),
    ((3,), (3, 4)),
    ((2, 3), (3,)),
    ((2, 3), (3, 4)),
    ((3,), (2, 3, 4)),
    ((2, 5, 3), (3,)),
    ((2, 5, 3), (3, 4)),
    ((5, 3), (2, 3, 4)),
    ((2, 5, 3), (2, 3, 4)),
    ((2, 1, 5, 3), (4, 3, 2)),
    ((1, 5, 3), (2, 3, 4)),
    ((2, 1, 3, 5, 2), (1, 4, 1, 2, 3)),
]


@pytest.mark.parametrize(("a", "b"), MATRICES)
def test_matmul_of_any_two_ranks(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(torch.matmul, torch.randn(a), torch.randn(b), **CLOSE)
    check(torch.matmul, integers(*a), integers(*b), compile=False)


def test_matmul_with_dynamic_axes() -> None:
    dynamic = {0: {0: "n", 2: "t"}, 1: {0: "n", 3: "s"}}
    a, b = torch.randn(2, 4, 5, 3), torch.randn(2, 4, 3, 6)
    more = [
        (torch.randn(1, 4, 1, 3), torch.randn(1, 4, 3, 12)),
        (torch.randn(4, 4, 10, 3), torch.randn(4, 4, 3, 1)),
    ]
    check(torch.matmul, a, b, dynamic=dynamic, more=more, **CLOSE)


def test_a_dynamic_batch_of_one_broadcasts() -> None:
    dynamic = {0: {0: "n"}, 1: {0: "m"}}
    a, b = torch.randn(2, 5, 3), torch.randn(2, 3, 6)
    check(torch.matmul, a, b, dynamic=dynamic, more=[(a[:1], b), (a, b[:1])], **CLOSE)


SPECIAL: list[tuple[Any, tuple[tuple[int, ...], ...]]] = [
    (torch.mm, ((2, 3), (3, 4))),
    (torch.bmm, ((2, 5, 3), (2, 3, 4))),
    (torch.mv, ((2, 3), (3,))),
    (torch.dot, ((3,), (3,))),
    (torch.vdot, ((3,), (3,))),
    (torch.outer, ((3,), (4,))),
    (torch.ger, ((3,), (4,))),
    (torch.inner, ((2, 3), (4, 3))),
    (torch.kron, ((2, 3), (3, 2))),
    (torch.kron, ((2,), (3, 1, 2))),
    (lambda a, b: torch.tensordot(a, b, dims=([1, 0], [0, 2])), ((2, 3, 4), (3, 5, 2))),
    (lambda a, b: torch.tensordot(a, b, dims=1), ((2, 3), (3, 4))),
    (lambda a, b: torch.tensordot(a, b, dims=0), ((2, 3), (2, 2))),
    (lambda a, b: torch.cross(a, b, dim=-1), ((2, 3), (2, 3))),
    (lambda a, b: torch.linalg.cross(a, b, dim=0), ((3, 2), (3, 2))),
    (lambda a, b: torch.cross(a, b), ((4, 3), (4, 3))),
    (lambda a, b: torch.linalg.vecdot(a, b, dim=0), ((4, 3), (4, 3))),
    (lambda a, b, c: torch.chain_matmul(a, b, c), ((2, 3), (3, 4), (4, 5))),
    (lambda a, b, c: torch.linalg.multi_dot([a, b, c]), ((2, 3), (3, 4), (4, 5))),
    (lambda a, b, c: torch.addmm(a, b, c), ((4,), (2, 3), (3, 4))),
    (lambda a, b, c: torch.addmm(a, b, c, beta=0.5, alpha=2), ((2, 4), (2, 3), (3, 4))),
    (lambda a, b, c: torch.addmv(a, b, c, beta=2, alpha=0.5), ((2,), (2, 3), (3,))),
    (lambda a, b, c: torch.addr(a, b, c, beta=2, alpha=0.5), ((2, 3), (2,), (3,))),
    (
        lambda a, b, c: torch.baddbmm(a, b, c, beta=0.5, alpha=2),
        ((2, 5, 4), (2, 5, 3), (2, 3, 4)),
    ),
    (
        lambda a, b, c: torch.addbmm(a, b, c, beta=0.5, alpha=2),
        ((5, 4), (2, 5, 3), (2, 3, 4)),
    ),
]


@pytest.mark.parametrize(("function", "shapes"), SPECIAL)
def test_products_of_every_name(
    function: Any, shapes: tuple[tuple[int, ...], ...]
) -> None:
    check(function, *(torch.randn(shape) for shape in shapes), **CLOSE)


def test_a_beta_of_zero_ignores_even_nan() -> None:
    x = torch.full((2, 4), torch.nan)
    check(
        lambda a, b, c: torch.addmm(a, b, c, beta=0),
        x,
        torch.randn(2, 3),
        torch.randn(3, 4),
        **CLOSE,
    )


def test_bilinear() -> None:
    module = nn.Bilinear(3, 4, 5).requires_grad_(False)
    check(
        lambda x, y: module(x, y), torch.randn(2, 6, 3), torch.randn(2, 6, 4), **CLOSE
    )


EQUATIONS: list[tuple[str, tuple[tuple[int, ...], ...]]] = [
    ("ij,jk->ik", ((2, 3), (3, 4))),
    ("ij,jk", ((2, 3), (3, 4))),
    ("ba,bc", ((2, 3), (2, 4))),
    ("bhqd,bhkd->bhqk", ((2, 3, 4, 5), (2, 3, 6, 5))),
    ("i,j->ij", ((2,), (3,))),
    ("ij->j", ((2, 3),)),
    ("ij->", ((2, 3),)),
    ("ij->ji", ((2, 3),)),
    ("ii->i", ((3, 3),)),
    ("ii", ((3, 3),)),
    ("...ij,...jk->...ik", ((2, 2, 3), (3, 4))),
    ("...ij->...ji", ((2, 4, 2, 3),)),
    ("bi...,ij->bj...", ((2, 3, 4, 5), (3, 6))),
    ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 5))),
    ("ij,kj,lj->ikl", ((2, 3), (4, 3), (5, 3))),
    ("bij,bij->b", ((2, 3, 4), (2, 3, 4))),
    ("Aij,Ajk->Aik", ((2, 3, 4), (2, 4, 5))),
    ("bij,bjk->bik", ((1, 3, 4), (2, 4, 5))),
    ("iij,jk->ik", ((3, 3, 2), (2, 4))),
    ("i j, j k -> k i", ((2, 3), (3, 4))),
    ("bij->bij", ((1, 2, 3),)),
]


@pytest.mark.parametrize(("equation", "shapes"), EQUATIONS)
def test_einsum(equation: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    check(
        lambda *x: torch.einsum(equation, *x),
        *(torch.randn(s) for s in shapes),
        **CLOSE,
    )
    check(
        lambda *x: torch.einsum(equation, *x),
        *(integers(*s) for s in shapes),
        compile=False,
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.linear(x, x, x[0]),
        lambda x: torch.addr(x, x[0], x[1], beta=3, alpha=2),
        lambda x: torch.addbmm(x, x[None], x[None], beta=3),
        lambda x: torch.bilinear(x, x, x[None], x[0, :1]),
        lambda x: torch.linalg.cross(x, x.flip(0)),
        lambda x: torch.einsum("ij,jk->ik", x, x),
        lambda x: torch.einsum("ij->j", x),
        lambda x: torch.einsum("ij,ij->ij", x, x).sum(),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
def test_products_of_small_integers_wrap_around(
    function: Any, dtype: torch.dtype
) -> None:
    """Divided, because an output is cast to the dtype anyway."""
    x = torch.tensor([[3, 99, 7], [120, 2, 11], [5, 40, 111]], dtype=dtype)
    check(lambda x: (function(x), function(x) // 3), x, compile=False)


def test_einsum_that_sums_one_operand_of_integers_is_refused() -> None:
    x = torch.ones(2, 3).int()
    with pytest.raises(UnsupportedOperators, match="an axis of integers that only one"):
        check(lambda x: torch.einsum("ij,kl->il", x, x), x)


@pytest.mark.parametrize(
    ("equation", "layers"),
    [
        ("bhqd,bhkd->bhqk", 1),
        ("bhqk,bhkd->bhqd", 1),
        ("bqhd,bkhd->bhqk", 3),
        ("bhqk,bkhd->bqhd", 3),
        ("ij,jk", 1),
        ("bci,bcj->bij", 2),
        ("bij,bcj->bci", 1),
        ("ik,jk->ji", 1),
        ("blhd,md->blhm", 2),
        ("km,blk->blm", 2),
    ],
)
def test_einsum_of_matrices_is_their_product(equation: str, layers: int) -> None:
    """The product, and a shuffle for each axis order that it does not have itself."""
    lengths = dict(zip("bhqkdijclm", (2, 3, 4, 5, 6, 7, 8, 9, 2, 3), strict=True))
    inputs = [
        torch.randn([lengths[c] for c in term])
        for term in equation.partition("->")[0].split(",")
    ]
    network = check(lambda *x: torch.einsum(equation, *x), *inputs, **CLOSE).network
    kinds = [network.get_layer(i).type for i in range(network.num_layers)]
    assert kinds.count(trt.LayerType.MATRIX_MULTIPLY) == 1
    assert [kind for kind in kinds if kind != trt.LayerType.CONSTANT][layers:] == []


def test_einsum_with_dynamic_axes() -> None:
    a, b = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 5)
    dynamic = {0: {0: "n", 2: "q"}, 1: {0: "n", 2: "k"}}
    more = [(torch.randn(1, 3, 8, 5), torch.randn(1, 3, 2, 5))]
    check(
        lambda a, b: torch.einsum("bhqd,bhkd->bhqk", a, b),
        a,
        b,
        dynamic=dynamic,
        more=more,
        **CLOSE,
    )
