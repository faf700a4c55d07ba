"""A lowered graph cut in pieces: running the pieces equals running the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import builder
from builder.errors import UnsupportedOperators
from builder.manifest.spec import Fallback
from builder.partition import Partition, split

DIMS = {"b": (1, 4, 8), "s": (1, 5, 9)}


class Spectral(nn.Module):
    """An FFT, which TensorRT has not, between two parts that it has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y = torch.relu(self.first(x))
        spectrum = torch.relu(torch.fft.rfft(y, dim=-1).abs()) + 1
        return self.second(y) * x.size(0) + spectrum.sum(), x, y


def partition(module: nn.Module, shape: tuple[Any, ...] = ("b", "s", 8), **fallback: Any) -> tuple[Any, Partition]:
    script = torch.jit.script(module.eval())
    names = {axis for axis in shape if isinstance(axis, str)}
    dims = {name: span for name, span in DIMS.items() if name in names}
    spec = builder.TensorSpec("float32", shape, dims=dims)
    options = Fallback(**{"min_block_size": 1, **fallback})
    return script, split(builder.lower(script), [spec], [dims], options)


def run(pieces: Partition, *inputs: torch.Tensor) -> list[torch.Tensor]:
    """Every segment by torch, in order."""
    values = dict(zip(pieces.inputs, inputs, strict=True))
    for segment in pieces.segments:
        values.update(zip(segment.outputs, segment.lowered.run(*(values[n] for n in segment.inputs)), strict=True))
    return [values[name] for name in pieces.outputs]


def test_pieces_give_the_answers_of_the_whole() -> None:
    script, pieces = partition(Spectral())
    x = torch.randn(3, 5, 8)
    assert [s.kind for s in pieces.segments][:2] == ["tensorrt", "torch"]
    for got, wanted in zip(run(pieces, x), script(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_axes_keep_their_names_across_borders() -> None:
    """A border's TensorSpec names the same dynamic axes that the manifest names."""
    _, pieces = partition(Spectral())
    assert {
        axis for s in pieces.segments for spec in s.specs if spec for axis in spec.shape if isinstance(axis, str)
    } == {"b", "s"}


def test_tensorrt_segments_convert_and_agree() -> None:
    _, pieces = partition(Spectral())
    segment = pieces.segments[0]
    conversion = builder.convert(segment.lowered, segment.specs, profiles=segment.profiles)
    x = torch.randn(2, 3, 8)
    for got, wanted in zip(builder.reference.run(conversion, [x]), segment.lowered.run(x), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_every_operator_that_stays_is_told_with_its_line() -> None:
    _, pieces = partition(Spectral())
    told = {operator.schema.split("(")[0]: operator.where for operator in pieces.refused}
    assert "aten::fft_rfft" in told
    assert "test_split.py" in told["aten::fft_rfft"]


def test_the_user_can_keep_an_operator_in_torch() -> None:
    _, pieces = partition(Spectral(), ops=("aten::linear",))
    assert all(s.kind == "torch" or not s.flops for s in pieces.segments)


def test_require_full_refuses_to_split() -> None:
    with pytest.raises(UnsupportedOperators, match="fft_rfft"):
        partition(Spectral(), require_full=True)


def test_a_graph_that_tensorrt_runs_whole_is_one_segment() -> None:
    _, pieces = partition(nn.Sequential(nn.Linear(8, 4), nn.ReLU()))
    assert [s.kind for s in pieces.segments] == ["tensorrt"]


def test_small_blocks_melt_into_torch() -> None:
    _, pieces = partition(Spectral(), min_block_size=100)
    assert [s.kind for s in pieces.segments] == ["torch"]


class Lists(nn.Module):
    """Values that cross as lists and sizes: recomputed where they are read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = torch.split(torch.relu(x), [3, 5], dim=-1)
        spectrum = torch.fft.rfft(second, dim=-1).abs()
        return torch.cat([first, spectrum.reshape(x.size(0), x.size(1), 3)], dim=-1) + x.size(1)


def test_lists_and_sizes_are_recomputed_in_their_readers() -> None:
    script, pieces = partition(Lists())
    x = torch.randn(2, 4, 8)
    torch.testing.assert_close(run(pieces, x)[0], script(x), rtol=0, atol=0)


class Numbers(nn.Module):
    """Numbers that a branch and a loop on data make, read on both sides of a TensorRT segment."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.fft.fft(x).abs()
        n = 2 if bool(y.sum() > 40) else 3
        z = torch.relu(self.first(y))
        w = torch.fft.fft(z).abs() * n
        total = 0
        while total < 5 and bool(y[0, 0] * total < 9):
            total += 2
        return torch.relu(self.second(w)) + total, torch.fft.fft(w).abs() + n + total


class Listed(nn.Module):
    """A list that a loop makes beside a tensor, and to which something of a TensorRT segment is added."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.relu(self.first(x))
        state, found = torch.fft.fft(before).abs(), [x]
        while len(found) < 4 and bool(state.sum() < 400):
            state = state * 2
            found.append(state)
        after = torch.relu(self.second(state))
        found.append(after)
        return torch.cat(found, dim=1).sum(1), after


@pytest.mark.parametrize("module", [Numbers(), Listed()])
def test_numbers_and_lists_of_branches_and_loops_never_cross(module: nn.Module) -> None:
    """Numbers are computed again, a list stays on one side."""
    script, pieces = partition(module, ("b", 8))
    assert len({s.kind for s in pieces.segments}) == 2
    for x in (torch.randn(3, 8), torch.full((2, 8), 9.0), torch.zeros(1, 8)):
        for got, wanted in zip(run(pieces, x), script(x), strict=True):
            torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    types = {str(v.type()) for s in pieces.segments for v in (*s.lowered.graph.inputs(), *s.lowered.graph.outputs())}
    assert types == {"Tensor"}
