"""Masked updates are computed for all elements: no size depends on the data, and the outputs are
the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import builder
from builder.lowering import LoweredGraph, ir
from tests.lowering.asserting import assert_equal_outputs

SPEC = builder.TensorSpec("float32", ("n", 4), dims={"n": (1, 3, 8)})
INDEXING = ("aten::index", "aten::index_put")


def scaled(x: Tensor) -> Tensor:
    y = x.clone()
    y[y > 1] *= 2.0
    return y


def from_another_tensor(x: Tensor) -> Tensor:
    y, mask = torch.zeros_like(x), x > 0
    y[mask] = torch.exp(x[mask]) + 1
    return y


def whole_rows(x: Tensor) -> Tensor:
    y, mask = x.clone(), x[:, 0] > 0
    y[mask] = y[mask] * 2
    return y


def minus_mean(x: Tensor) -> Tensor:
    y, mask = x.clone(), x > 0
    y[mask] -= x.mean()
    return y


def two_masks(x: Tensor) -> Tensor:
    y, mask = x.clone(), x > 0
    y[mask] += 1
    y[~mask] = -y[~mask]
    return y


def combined_mask(x: Tensor) -> Tensor:
    y, mask = x.clone(), (x > 0) & (x < 1) | (x < -1)
    y[mask] = torch.sqrt(x[mask].abs()) / 2
    return y


def mask_of_fewer_axes(x: Tensor) -> tuple[Tensor, Tensor]:
    z, mask = x.unsqueeze(-1).expand(-1, -1, 3) * 1.0, x > 0
    y = z.clone()
    y[mask] = z[mask] * 2 - y[mask]
    return y, z[mask].sum()


def two_tensors(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    y, mask = torch.where(x > 0, x, x * 2), torch.logical_or(x > 1, x < -1)
    a, b = y[mask], x[mask]
    y[mask] = a * b + a.clamp(min=0)
    return y, (a * b).mean(), (b > 0).sum()


def nan_outside_mask(x: Tensor) -> Tensor:
    y, mask = x.clone(), x > 0
    y[mask] = torch.log(x[mask])  # nan where the mask is false
    return y + torch.log(x[mask]).sum()


def integers(x: Tensor) -> tuple[Tensor, Tensor]:
    y = (x * 4).to(torch.int32)
    mask = y > 1
    scaled_picks = y[mask] * 3
    y[mask] = scaled_picks
    return y, scaled_picks.sum()


def positions_of_mask(x: Tensor) -> tuple[Tensor, Tensor]:
    y, z = x.clone(), x * 1.5
    i, j = torch.where((y > 0).logical_not())
    y[i, j] = y[i, j] * 2.0
    i, j = torch.ops.aten.nonzero_numpy(z.abs() > 1)
    z[i, j] += 1
    return y, z


def cases(*rows: int) -> list[Tensor]:
    return [
        torch.randn(n, 4, generator=torch.Generator().manual_seed(n)) for n in rows
    ] + [torch.full((2, 4), -0.5)]


def lowered(function: Callable[..., Any], **settings: Any) -> LoweredGraph:
    """The lowered function; its outputs must match, also where a mask selects no element."""
    script = torch.jit.script(function)
    result = builder.lower(script.graph, **settings)
    for x in cases(1, 3, 8):
        assert_equal_outputs(result, script, [x], rtol=1e-6, atol=1e-6, equal_nan=True)
    return result


ELEMENTWISE = [
    scaled,
    from_another_tensor,
    whole_rows,
    minus_mean,
    two_masks,
    combined_mask,
    mask_of_fewer_axes,
    two_tensors,
    nan_outside_mask,
    integers,
    positions_of_mask,
]


@pytest.mark.parametrize("function", ELEMENTWISE)
def test_masked_elementwise_updates_are_computed_for_all_elements(
    function: Callable[..., Any],
) -> None:
    lowered_graph = lowered(function, specs=[SPEC])
    assert ir.nodes_of(lowered_graph.graph, *INDEXING) == []


@pytest.mark.parametrize("function", [scaled, two_masks, integers])
def test_masked_updates_of_traces_are_computed_for_all_elements(
    function: Callable[..., Any],
) -> None:
    traced = torch.jit.trace(function, cases(3)[0], check_trace=False)
    result = builder.lower(traced.graph, specs=[SPEC])
    assert ir.nodes_of(result.graph, *INDEXING) == []
    for x in cases(3):
        assert_equal_outputs(result, function, [x], rtol=1e-6, atol=1e-6)


def test_mean_of_halves_does_not_overflow() -> None:
    result = builder.lower(torch.jit.script(masked_mean_of_halves).graph, specs=[SPEC])
    assert ir.nodes_of(result.graph, *INDEXING) == []
    for x in (torch.full((300, 4), 100.0), torch.full((2, 4), 0.1)):
        assert_equal_outputs(result, masked_mean_of_halves, [x], rtol=0, atol=0)


def masked_mean_of_halves(x: Tensor) -> Tensor:
    half = x.half()
    return half[half > 0].mean()


def returned(x: Tensor) -> Tensor:
    return x[x > 0] * 2


def from_another_mask(x: Tensor) -> Tensor:
    y = x.clone()
    y[x > 0] = x[x.flip([1]).flip([1]) > 0]
    return y


def integer_division(x: Tensor) -> Tensor:
    y = (x * 4).to(torch.int32)
    mask = y != 0
    y[mask] = torch.div(
        y[mask] * 100, y[mask], rounding_mode="floor"
    )  # torch cannot divide the other integers: they are zero
    return y


def sum_along_axis(x: Tensor) -> Tensor:
    return x[x[:, 0] > 0].sum(0)


def cumulative_sum(x: Tensor) -> Tensor:
    y, mask = x.clone(), x > 0
    y[mask] = x[mask].cumsum(0)
    return y


def sum_with_arange(x: Tensor) -> Tensor:
    y, mask = x.clone(), x > 0
    y[mask] = x[mask] + torch.arange(int(mask.sum()))
    return y


def accumulated(x: Tensor) -> Tensor:
    mask = x > 0
    return x.index_put([mask], x[mask] * 2, accumulate=True)


@pytest.mark.parametrize(
    "function",
    [
        returned,
        from_another_mask,
        integer_division,
        sum_along_axis,
        cumulative_sum,
        sum_with_arange,
        accumulated,
    ],
)
def test_indexing_that_is_not_elementwise_stays(function: Callable[..., Any]) -> None:
    assert ir.nodes_of(lowered(function, specs=[SPEC]).graph, "aten::index")


def full_rows(x: Tensor) -> Tensor:
    y = (x > 0) & (x < 2)
    rows = torch.where(y.sum(-1) >= torch.ops.prim.NumToTensor(y.size(-1)) - 1)
    y[rows[0]] = False
    return y


def positions_of_smaller_mask(x: Tensor) -> Tensor:
    y = x.clone()
    i, j = torch.where(x[:1] > 0)
    y[i, j] = 5.0
    return y


@pytest.mark.parametrize(
    ("function", "finds"), [(full_rows, False), (positions_of_smaller_mask, True)]
)
def test_positions_stay_unless_mask_has_the_sizes(
    function: Callable[..., Any], finds: bool
) -> None:
    graph = lowered(function, specs=[SPEC]).graph
    assert len(ir.nodes_of(graph, "aten::where")) == finds


def test_indexing_stays_without_specs() -> None:
    assert ir.nodes_of(lowered(scaled).graph, "aten::index")
