"""Repeats, flips, rolls, grids, shuffles, windows, diagonals and triangles against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, convert
from tests.conversion.test_shape import DTYPES, sample

CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "repeat": (lambda x: x.repeat(2, 3), (2, 3)),
    "repeat with new axes": (lambda x: x.repeat(2, 1, 1, 2), (2, 3)),
    "repeat of 0-d": (lambda x: x.repeat(3), ()),
    "repeat of once": (lambda x: x.repeat(1, 1).relu(), (2, 3)),
    "tile": (lambda x: x.tile(2), (2, 3)),
    "tile with new axes": (lambda x: x.tile(2, 1, 2), (2, 3)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), (2, 3)),
    "repeat_interleave of a negative axis": (
        lambda x: x.repeat_interleave(3, -2),
        (2, 3),
    ),
    "repeat_interleave of all": (lambda x: x.repeat_interleave(2), (2, 3)),
    "repeat_interleave of each": (
        lambda x: x.repeat_interleave(torch.tensor([2, 0, 3]), 1),
        (2, 3),
    ),
    "repeat_interleave by one number": (
        lambda x: x.repeat_interleave(torch.tensor([2]), 0),
        (2, 3),
    ),
    "flip": (lambda x: x.flip(0, -1), (2, 3, 4)),
    "flip of no axis": (lambda x: x.flip([]).relu(), (2, 3)),
    "flip of 0-d": (lambda x: x.flip([]).relu(), ()),
    "fliplr": (lambda x: x.fliplr(), (2, 3)),
    "flipud": (lambda x: x.flipud(), (2, 3)),
    "roll": (lambda x: x.roll(1, 0), (3, 2)),
    "roll of two axes": (lambda x: x.roll((1, -2), (0, -1)), (3, 4)),
    "roll of one axis twice": (lambda x: x.roll((1, 1), (1, 1)), (3, 4)),
    "roll beyond the size": (lambda x: x.roll(-7, 1), (2, 3)),
    "roll of all": (lambda x: x.roll(2), (2, 3)),
    "roll all the way": (lambda x: x.roll(3, 1).relu(), (2, 3)),
    "rot90": (lambda x: x.rot90(), (2, 3)),
    "rot90 twice": (lambda x: x.rot90(2, [0, 2]), (2, 3, 4)),
    "rot90 backwards": (lambda x: x.rot90(-1, [1, 2]), (2, 3, 4)),
    "rot90 all the way": (lambda x: x.rot90(4).relu(), (2, 3)),
    "rot90 from the last axis": (lambda x: x.rot90(1, [-1, 0]), (2, 3)),
    "meshgrid": (lambda x: torch.meshgrid(x, torch.arange(3.0), indexing="ij"), (2,)),
    "meshgrid of x and y": (
        lambda x: torch.meshgrid(x, x[:1], x[1:], indexing="xy"),
        (3,),
    ),
    "meshgrid of one": (lambda x: torch.meshgrid(x.relu(), indexing="xy"), (3,)),
    "meshgrid of 0-d": (lambda x: torch.meshgrid(x[0], x, indexing="ij"), (3,)),
    "meshgrid without indexing": (lambda x: torch.ops.aten.meshgrid([x, x[1:]]), (3,)),
    "cartesian_prod": (lambda x: torch.cartesian_prod(x, x[1:]), (3,)),
    "cartesian_prod of one": (lambda x: torch.cartesian_prod(x.relu()), (3,)),
    "combinations": (lambda x: torch.combinations(x), (4,)),
    "combinations of three with replacement": (
        lambda x: torch.combinations(x, 3, True),
        (3,),
    ),
    "pixel_shuffle": (lambda x: torch.pixel_shuffle(x, 2), (2, 8, 3, 1)),
    "pixel_shuffle of one image": (lambda x: torch.pixel_shuffle(x, 3), (9, 2, 2)),
    "pixel_shuffle of five axes": (
        lambda x: torch.pixel_shuffle(x, 2),
        (2, 2, 4, 3, 2),
    ),
    "pixel_unshuffle": (lambda x: torch.pixel_unshuffle(x, 2), (2, 3, 4, 2)),
    "pixel_unshuffle of one image": (lambda x: torch.pixel_unshuffle(x, 3), (1, 3, 6)),
    "channel_shuffle": (lambda x: torch.channel_shuffle(x, 2), (2, 6, 3, 2)),
    "channel_shuffle of five axes": (
        lambda x: torch.channel_shuffle(x, 3),
        (2, 6, 1, 2, 2),
    ),
    "unfold": (lambda x: x.unfold(1, 3, 2), (2, 7)),
    "unfold with gaps": (lambda x: x.unfold(0, 1, 2), (5, 2)),
    "unfold of a middle axis": (lambda x: x.unfold(-2, 2, 1), (2, 3, 4)),
    "unfold of everything": (lambda x: x.unfold(0, 5, 1), (5,)),
    "unfold of 0-d": (lambda x: x.unfold(0, 1, 1), ()),
    "im2col": (lambda x: torch.nn.functional.unfold(x, 2), (2, 3, 4, 5)),
    "im2col with everything": (
        lambda x: torch.nn.functional.unfold(x, (2, 3), (2, 1), (1, 2), (2, 1)),
        (2, 2, 6, 5),
    ),
    "im2col of one image": (
        lambda x: torch.nn.functional.unfold(x, 3, padding=1),
        (2, 3, 4),
    ),
    "col2im": (lambda x: torch.nn.functional.fold(x, (4, 5), 2), (2, 12, 12)),
    "col2im with everything": (
        lambda x: torch.nn.functional.fold(x, (6, 5), (2, 3), (2, 1), (1, 2), (2, 1)),
        (2, 12, 21),
    ),
    "col2im with rows that no window reaches": (
        lambda x: torch.nn.functional.fold(x, (5, 4), 2, stride=2),
        (1, 4, 4),
    ),
    "col2im of one image": (
        lambda x: torch.nn.functional.fold(x, (3, 3), 3, padding=1),
        (18, 9),
    ),
    "diagonal": (lambda x: x.diagonal(), (3, 4)),
    "diagonal above": (lambda x: x.diagonal(2), (3, 4)),
    "diagonal below": (lambda x: x.diagonal(-1), (3, 4)),
    "diagonal of other axes": (lambda x: x.diagonal(1, -1, 0), (3, 2, 4)),
    "diagonal outside": (lambda x: torch.cat([x.diagonal(4), x[0]]), (3, 4)),
    "diag_embed": (lambda x: torch.diag_embed(x), (2, 3)),
    "diag_embed above": (lambda x: torch.diag_embed(x, 2), (2, 3)),
    "diag_embed below": (lambda x: torch.diag_embed(x, -1), (2, 3)),
    "diag_embed of other axes": (lambda x: torch.diag_embed(x, 1, 0, 2), (2, 3)),
    "diag_embed of swapped axes": (lambda x: torch.diag_embed(x, 1, -1, 0), (2, 3)),
    "diag of a vector": (lambda x: x.diag(1), (3,)),
    "diag of a matrix": (lambda x: x.diag(-1), (3, 3)),
    "block_diag": (lambda x: torch.block_diag(x, x[0], x[:, :1].T, x[0, 0]), (2, 3)),
    "fill_diagonal_": (lambda x: (x * 2).fill_diagonal_(1.5), (5, 3)),
    "fill_diagonal_ of equal axes": (lambda x: (x * 2).fill_diagonal_(1), (2, 2, 2)),
    "triu": (lambda x: x.triu(), (3, 4)),
    "triu above": (lambda x: x.triu(2), (2, 3, 4)),
    "triu below": (lambda x: x.triu(-1), (4, 3)),
    "tril": (lambda x: x.tril(), (3, 4)),
    "tril above": (lambda x: x.tril(1), (2, 1, 3, 4)),
    "tril below": (lambda x: x.tril(-2), (4, 3)),
}
COMPILED = (
    "repeat",
    "flip",
    "roll of two axes",
    "unfold",
    "col2im with everything",
    "diag_embed below",
    "triu",
    "im2col",
)


@pytest.mark.parametrize("name", CASES)
def test_values_match_torch(name: str) -> None:
    function, shape = CASES[name]
    check(function, sample(*shape), compile=name in COMPILED)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_can_be_rearranged(dtype: torch.dtype) -> None:
    check(
        lambda x: (
            x.repeat(2, 1),
            x.flip(1),
            x.roll(1, 1),
            x.tril(),
            x.diagonal(),
            torch.diag_embed(x, 1),
        ),
        sample(2, 3, dtype=dtype),
    )


DYNAMIC: dict[
    str, tuple[Callable[..., Any], tuple[int, ...], list[tuple[int, ...]]]
] = {
    "repeat": (lambda x: x.repeat(2, 1, 3), (2, 4), [(1, 1), (4, 8)]),
    "repeat as often as there are rows": (
        lambda x: x.repeat(1, x.size(0)),
        (2, 4),
        [(1, 1), (4, 8)],
    ),
    "repeat_interleave": (
        lambda x: x.repeat_interleave(3, 1),
        (2, 4),
        [(1, 1), (4, 8)],
    ),
    "repeat_interleave of all": (
        lambda x: x.repeat_interleave(2),
        (2, 4),
        [(1, 1), (4, 8)],
    ),
    "flip": (lambda x: x.flip(0, 1), (2, 4), [(1, 1), (4, 8)]),
    "roll": (lambda x: x.roll((1, -1), (0, 1)), (2, 4), [(1, 1), (4, 8)]),
    "roll of half": (
        lambda x: x.roll((x.size(1) // 2,), (1,)),
        (2, 4),
        [(1, 1), (4, 7)],
    ),
    "roll of all": (lambda x: x.roll(3), (2, 4), [(1, 1), (4, 8)]),
    "rot90": (lambda x: x.rot90(), (2, 4), [(1, 1), (4, 8)]),
    "meshgrid": (
        lambda x: torch.meshgrid(x[0], x[:, 0], indexing="xy"),
        (2, 4),
        [(1, 1), (4, 8)],
    ),
    "cartesian_prod": (
        lambda x: torch.cartesian_prod(x[0], x[:, 0]),
        (2, 4),
        [(1, 1), (4, 8)],
    ),
    "pixel_shuffle": (
        lambda x: torch.pixel_shuffle(x.expand(8, -1, -1), 2),
        (2, 4),
        [(1, 1), (4, 8)],
    ),
    "pixel_unshuffle": (
        lambda x: torch.pixel_unshuffle(x[None], 2),
        (2, 4),
        [(2, 2), (4, 8)],
    ),
    "channel_shuffle": (
        lambda x: torch.channel_shuffle(x.expand(2, 6, -1, -1), 3),
        (2, 4),
        [(1, 1), (4, 8)],
    ),
    "unfold": (lambda x: x.unfold(1, 2, 1), (2, 4), [(1, 2), (4, 8)]),
    "unfold with a step": (lambda x: x.unfold(1, 2, 3), (2, 4), [(1, 2), (4, 8)]),
    "im2col": (
        lambda x: torch.nn.functional.unfold(x[None, None], 2, padding=1, stride=2),
        (2, 4),
        [(1, 1), (4, 7)],
    ),
    "diagonal": (lambda x: x.diagonal(), (2, 4), [(1, 1), (4, 2)]),
    "diagonal below": (lambda x: x.diagonal(-1), (2, 4), [(2, 1), (4, 2)]),
    "diag_embed": (lambda x: torch.diag_embed(x, 1), (2, 4), [(1, 1), (4, 8)]),
    "block_diag": (lambda x: torch.block_diag(x, x[0]), (2, 4), [(1, 1), (4, 8)]),
    "triu": (lambda x: x.triu(1), (2, 4), [(1, 1), (4, 8)]),
    "tril": (lambda x: x.tril(), (2, 4), [(1, 1), (4, 8)]),
    "tril by a size": (
        lambda x: x.tril(x.size(1) - x.size(0)),
        (2, 4),
        [(1, 1), (4, 8)],
    ),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_axes_match_torch_at_every_size(name: str) -> None:
    function, shape, more = DYNAMIC[name]
    check(
        function,
        sample(*shape),
        dynamic={0: {0: "n", 1: "w"}},
        more=[(sample(*m),) for m in more],
    )


def test_col2im_of_dynamic_height_and_width() -> None:
    def rebuild(x: torch.Tensor) -> torch.Tensor:
        columns = torch.nn.functional.unfold(x, 3, padding=1)
        return torch.nn.functional.fold(columns, (x.size(2), x.size(3)), 3, padding=1)

    check(
        rebuild,
        sample(2, 2, 3, 4),
        dynamic={0: {0: "n", 2: "h", 3: "w"}},
        more=[(sample(1, 2, 1, 1),), (sample(3, 2, 6, 5),)],
    )


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x.as_strided((2,), (1,)), "no strides"),
        (
            lambda x: x.repeat_interleave(x.abs().to(torch.int64), 0),
            "the network computes the repeats",
        ),
        (lambda x: torch.combinations(x), "dynamic axis 0"),
    ],
)
def test_unsupported_calls_are_refused_with_a_reason(
    function: Callable[..., Any], words: str
) -> None:
    with pytest.raises(UnsupportedOperators, match=words):
        convert(function, [sample(4)], dynamic={0: {0: "n"}})
