"""Outputs that depend on the whole batch prevent batching, even if goldens do not show it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.pipeline.batching_safety import one_for_all
from tests.repository import networks
from tests.repository.test_partition import build


def above_the_mean(x: Tensor) -> Tensor:
    return (x > x.mean() * 2) * x


def any_of_the_batch(x: Tensor) -> Tensor:
    return torch.where((x > 0).any(), x, -x)


def rounded_by_the_maximum(x: Tensor) -> Tensor:
    return torch.round(x / x.abs().amax() * 127)


def above_the_row_mean(x: Tensor) -> Tensor:
    return (x > x.mean(-1, keepdim=True)) * x


def compares_sizes(x: Tensor) -> Tensor:
    y = x / x.sum()
    return y[:, : 2 if y.size(0) > 3 else 1]


@pytest.mark.parametrize(
    "function", [above_the_mean, any_of_the_batch, rounded_by_the_maximum]
)
def test_whole_batch_decisions_are_detected(
    function: Callable[[Tensor], Tensor],
) -> None:
    reason = one_for_all(builder.lower(torch.jit.script(function).graph).graph)
    assert reason is not None and "whole batch" in reason


@pytest.mark.parametrize("function", [above_the_row_mean, compares_sizes])
def test_independent_rows_are_batched(function: Callable[[Tensor], Tensor]) -> None:
    assert one_for_all(builder.lower(torch.jit.script(function).graph).graph) is None


class Salient(nn.Module):
    """A model that computes a mean in one segment and compares with it in another."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(x * 2) + 1
        return torch.relu(y * (torch.sigmoid(y) * 3 > y.mean() * 1e-9)) + 1


@pytest.mark.parametrize("layout", ["fused", "ensemble"])
def test_segment_that_reads_the_batch_mean_is_not_batched(
    tmp_path: Path, layout: str
) -> None:
    result = build(
        tmp_path,
        Salient(),
        layout=layout,
        fallback={"min_block_size": 1, "ops": ["aten::mean"]},
    )
    assert result.segments == ("tensorrt", "torch", "tensorrt")
    reader = networks.step(
        tmp_path / "out", "m" if layout == "fused" else "m.2.tensorrt"
    )
    sidecar = json.loads((reader / "trt-build.json").read_text())
    assert sidecar["batching"]["max_batch_size"] == 0
    assert layout == "ensemble" or "whole batch" in sidecar["batching"]["reason"]
