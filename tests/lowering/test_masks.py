"""What masks pick, computed where it lies: no size depends on the data, and the answers are the
same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import builder
from builder.lowering import LoweredGraph, ir

SPEC = builder.TensorSpec("float32", ("n", 4), dims={"n": (1, 3, 8)})
PICKS = ("aten::index", "aten::index_put")


def scaled(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 1] *= 2.0
    return y


def of_another(x: Tensor) -> Tensor:
    y, mask = torch.zeros_like(x), x > 0
    y[mask] = torch.exp(x[mask]) + 1
    return y


def of_rows(x: Tensor) -> Tensor:
    y, mask = x.clone(), x[:, 0] > 0
    y[mask] = y[mask] * 2
    return y


def by_a_mean(x: Tensor) -> Tensor:
    y, mask = x.clone(), x > 0
    y[mask] -= x.mean()
    return y


def in_turn(x: Tensor) -> Tensor:
    y, mask = x.clone(), x > 0
    y[mask] += 1
    y[~mask] = -y[~mask]
    return y


def between(x: Tensor) -> Tensor:
    y, mask = x.clone(), (x > 0) & (x < 1) | (x < -1)
    y[mask] = torch.sqrt(x[mask].abs()) / 2
    return y


def of_more_axes(x: Tensor) -> tuple[Tensor, Tensor]:
    z, mask = x.unsqueeze(-1).expand(-1, -1, 3) * 1.0, x > 0
    y = z.clone()
    y[mask] = z[mask] * 2 - y[mask]
    return y, z[mask].sum()


def of_two(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y, mask = torch.where(x > 0, x, x * 2), torch.logical_or(x > 1, x < -1)
    a, b = y[mask], x[mask]
    y[mask] = a * b + a.clamp(min=0)
    return y, (a * b).mean(), (b > 0).sum()


def what_others_would_not_bear(x: Tensor) -> Tensor:
    y, mask = x.clone(), x > 0
    y[mask] = torch.log(x[mask])  # nan where the mask is false
    return y + torch.log(x[mask]).sum()


def as_integers(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 4).to(torch.int32)
    mask = y > 1
    kept = y[mask] * 3
    y[mask] = kept
    return y, kept.sum()


def cases(*rows: int) -> list[Tensor]:
    return [
        torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in rows
    ] + [torch.full((2, 4), -0.5)]


def lowered(function: Callable[..., Any], **settings: Any) -> LoweredGraph:
    """The function lowered; its answers are its own, also where a mask picks nothing."""
    script = torch.jit.script(function)
    found = builder.lower(script.graph, **settings)
    for x in cases(1, 3, 8):
        wanted = script(x)
        for got, truth in zip(
            found.run(x),
            wanted if isinstance(wanted, tuple) else (wanted,),
            strict=True,
        ):
            torch.testing.assert_close(got, truth, rtol=1e-6, atol=1e-6, equal_nan=True)
    return found


WHOLE = [
    scaled,
    of_another,
    of_rows,
    by_a_mean,
    in_turn,
    between,
    of_more_axes,
    of_two,
    what_others_would_not_bear,
    as_integers,
]


@pytest.mark.parametrize("function", WHOLE)
def test_it_is_computed_of_all(function: Callable[..., Any]) -> None:
    found = lowered(function, specs=[SPEC])
    assert ir.nodes_of(found.graph, *PICKS) == []


def returned(x: Tensor) -> Tensor:
    return x[x > 0] * 2


def by_another_mask(x: Tensor) -> Tensor:
    y = x.clone()
    y[x > 0] = x[x.flip([1]).flip([1]) > 0]
    return y


def divided(x: Tensor) -> Tensor:
    y = (x * 4).to(torch.int32)
    mask = y != 0
    y[mask] = torch.div(
        y[mask] * 100, y[mask], rounding_mode="floor"
    )  # where the mask is false, torch divides no integer by zero
    return y


def along_an_axis(x: Tensor) -> Tensor:
    return x[x[:, 0] > 0].sum(0)


def with_their_own(x: Tensor) -> Tensor:
    y, mask = x.clone(), x > 0
    y[mask] = x[mask].cumsum(0)
    return y


def by_a_number_each(x: Tensor) -> Tensor:
    y, mask = x.clone(), x > 0
    y[mask] = x[mask] + torch.arange(int(mask.sum()))
    return y


def added(x: Tensor) -> Tensor:
    mask = x > 0
    return x.index_put([mask], x[mask] * 2, accumulate=True)


@pytest.mark.parametrize(
    "function",
    [
        returned,
        by_another_mask,
        divided,
        along_an_axis,
        with_their_own,
        by_a_number_each,
        added,
    ],
)
def test_what_is_not_element_by_element_stays(function: Callable[..., Any]) -> None:
    assert ir.nodes_of(lowered(function, specs=[SPEC]).graph, "aten::index")


def test_without_a_description_of_the_inputs_nothing_is_known_of_their_axes() -> None:
    assert ir.nodes_of(lowered(scaled).graph, "aten::index")
