"""Selecting, slicing and splitting against torch: negative and open bounds, steps, late ends,
dynamic axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from builder.conversion import nonzero
from builder.conversion.converters.splitting import _least_with_fewer
from builder.engine import capabilities
from builder.errors import UnsupportedOperators
from tests.conversion.harness import check, convert
from tests.conversion.test_shape import DTYPES, sample

CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "select": (lambda x: x.select(1, 2), (2, 3, 4)),
    "select from the end": (lambda x: x.select(-1, -2), (2, 3, 4)),
    "select of a vector": (lambda x: x[1], (3,)),
    "select of an axis of one": (lambda x: x[:, 0], (3, 1, 2)),
    "select, then select": (lambda x: x[1, -1], (2, 3, 4)),
    "slice": (lambda x: x[1:3], (4, 3)),
    "slice with negative bounds": (lambda x: x[:, -3:-1], (2, 5)),
    "slice with a step": (lambda x: x[..., 1:6:2], (2, 7)),
    "slice with a step to the end": (lambda x: x[::3], (7, 2)),
    "slice beyond the size": (lambda x: x[-9:9], (4, 3)),
    "slice of a late start": (lambda x: x[1:99:2], (4, 3)),
    "slice of all": (lambda x: x[:, :].relu(), (2, 3)),
    "slice of nothing": (lambda x: torch.cat([x[2:1], x]), (4, 3)),
    "slices of five axes": (lambda x: x[:, 1:, ::2, :-1, -1:], (2, 3, 4, 3, 2)),
    "narrow": (lambda x: x.narrow(1, 1, 2), (2, 4)),
    "narrow from the end": (lambda x: x.narrow(-1, -3, 2), (2, 4)),
    "narrow to one": (lambda x: x.narrow(0, 0, 1), (2, 4)),
    "narrow of an axis of one": (lambda x: x.narrow(0, 0, 1).relu(), (1, 4)),
    "narrow from a tensor": (lambda x: x.narrow(1, torch.tensor(1), 2), (2, 4)),
    "split": (lambda x: x.split(2), (5, 3)),
    "split of a negative axis": (lambda x: x.split(2, -1), (2, 4)),
    "split beyond the size": (lambda x: tuple(p.relu() for p in x.split(9, 1)), (2, 4)),
    "split by sizes": (lambda x: x.split([1, 3], 1), (2, 4)),
    "split_with_sizes": (
        lambda x: torch.split_with_sizes(x, [2, 0, 2][::2], -1),
        (2, 4),
    ),
    "unsafe_split": (lambda x: torch.unsafe_split(x, 3, 1), (2, 4)),
    "unsafe_split_with_sizes": (
        lambda x: torch.unsafe_split_with_sizes(x, [3, 1], 1),
        (2, 4),
    ),
    "chunk": (lambda x: x.chunk(3), (7, 2)),
    "chunk of a negative axis": (lambda x: x.chunk(2, -1), (2, 3)),
    "chunk into fewer": (lambda x: x.chunk(4, 1), (2, 6)),
    "unsafe_chunk": (lambda x: torch.unsafe_chunk(x, 2), (4, 2)),
    "tensor_split": (lambda x: x.tensor_split(3), (7, 2)),
    "tensor_split at indices": (lambda x: x.tensor_split((1, -2), 1), (2, 5)),
    "tensor_split by a tensor": (
        lambda x: x.tensor_split(torch.tensor([2, 3])),
        (5, 2),
    ),
    "hsplit": (lambda x: x.hsplit(2), (2, 4)),
    "hsplit of a vector": (lambda x: x.hsplit([1, 3]), (5,)),
    "vsplit": (lambda x: x.vsplit(2), (2, 4)),
    "dsplit": (lambda x: x.dsplit([1]), (2, 3, 2)),
    "unbind": (lambda x: x.unbind(), (3, 2)),
    "unbind of the last axis": (lambda x: x.unbind(-1), (3, 2)),
    "unbind of one": (lambda x: x.unbind(1), (3, 1)),
}


@pytest.mark.parametrize("name", CASES)
def test_selected_part_matches_torch(name: str) -> None:
    function, shape = CASES[name]
    check(
        function,
        sample(*shape),
        compile=name
        in ("select", "slice with a step", "slice of nothing", "split", "unbind"),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_can_be_sliced(dtype: torch.dtype) -> None:
    check(lambda x: (x[:, 1], x[-1:, ::2], *x.chunk(2, 1)), sample(2, 4, dtype=dtype))


DYNAMIC: dict[
    str, tuple[Callable[..., Any], tuple[int, ...], list[tuple[int, ...]]]
] = {
    "select from the end": (lambda x: x[-1], (3, 4), [(1, 4), (6, 8)]),
    "select in the middle": (lambda x: x[:, x.size(1) // 2], (3, 4), [(1, 1), (6, 8)]),
    "slice to a negative end": (lambda x: x[:-1], (3, 4), [(2, 4), (6, 8)]),
    "slice from a negative start": (lambda x: x[-2:], (3, 4), [(1, 1), (6, 8)]),
    "slice beyond what it may have": (lambda x: x[:4, 2:5], (3, 4), [(1, 3), (6, 8)]),
    "slice with a step": (lambda x: x[::2, 1::3], (3, 4), [(2, 2), (6, 8), (5, 7)]),
    "slice from half": (lambda x: x[:, x.size(1) // 2 :], (3, 4), [(1, 1), (6, 7)]),
    "slice to a computed end": (
        lambda x: x[:, : x.size(1) - 1],
        (3, 4),
        [(1, 2), (6, 7)],
    ),
    "slice by the other axis": (
        lambda x: x[:, : x.size(0)],
        (3, 4),
        [(1, 1), (2, 8), (6, 3)],
    ),
    "narrow": (lambda x: x.narrow(1, 0, 1), (3, 4), [(1, 1), (6, 8)]),
    "narrow from a computed start": (
        lambda x: x.narrow(0, x.size(0) - 1, 1),
        (3, 4),
        [(1, 1), (6, 8)],
    ),
    "narrow to a computed length": (
        lambda x: x.narrow(1, 0, x.size(1) // 2),
        (3, 4),
        [(1, 2), (6, 8)],
    ),
    "chunk of a dynamic axis": (lambda x: x.chunk(2, 1), (3, 4), [(1, 2), (6, 7)]),
    "split of a dynamic axis": (lambda x: x.split(4, 1), (3, 6), [(1, 5), (6, 8)]),
    "split by dynamic sizes": (
        lambda x: x.split([x.size(1) - 1, 1], 1),
        (3, 6),
        [(1, 2), (6, 12)],
    ),
    "tensor_split of a dynamic axis": (
        lambda x: x.tensor_split(3, 1),
        (3, 6),
        [(1, 4), (6, 11)],
    ),
    "tensor_split at indices": (
        lambda x: x.tensor_split((1, -1), 1),
        (3, 6),
        [(1, 2), (6, 11)],
    ),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_bounds_are_relative_to_actual_axis_size(name: str) -> None:
    function, shape, more = DYNAMIC[name]
    check(
        function,
        sample(*shape),
        dynamic={0: {0: "n", 1: "t"}},
        more=[(sample(*m),) for m in more],
    )


LISTS = {
    "split": "%l : Tensor[] = aten::split(%x, %two, %zero)",
    "chunk": "%l : Tensor[] = aten::chunk(%x, %two, %zero)",
}


@pytest.mark.parametrize("name", LISTS)
def test_tensor_count_from_dynamic_size_is_refused(name: str) -> None:
    graph = f"""
        graph(%x : Tensor):
          %zero : int = prim::Constant[value=0]()
          %two : int = prim::Constant[value=2]()
          {LISTS[name]}
          %r : Tensor = aten::cat(%l, %zero)
          return (%r)"""
    with pytest.raises(UnsupportedOperators, match="dynamic axis 0"):
        convert(graph, [sample(4, 3)], dynamic={0: {0: "n"}})


class LastChunk(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.chunk(3, 0)[-1]


class LastChunkOfSelected(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[x > 0].chunk(3)[-1]


def test_last_chunk_of_a_data_dependent_axis_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nonzero, "available", lambda: True)
    with pytest.raises(UnsupportedOperators, match="dynamic axis 0"):
        convert(LastChunkOfSelected(), [sample(4, 3)])


@pytest.mark.parametrize("chunks", [1, 2, 3, 4, 7])
def test_least_size_with_fewer_chunks(chunks: int) -> None:
    parts = {size: len(torch.zeros(size).chunk(chunks)) for size in range(1, 99)}
    for low in range(1, 50):
        fewer = [size for size in parts if size >= low and parts[size] < chunks]
        assert _least_with_fewer(low, chunks) == (fewer[0] if fewer else math.inf)


@pytest.mark.parametrize(("least", "converts"), [(4, False), (5, True)])
def test_last_chunk_needs_sizes_with_all_chunks(least: int, converts: bool) -> None:
    """torch returns two chunks of two rows for four rows and three chunks."""
    arguments: Any = {"dynamic": {0: {0: "n"}}, "spans": {"n": (least, 6, 9)}}
    if converts:
        more = [(sample(rows, 3),) for rows in range(least, 10)]
        check(LastChunk(), sample(6, 3), **arguments, more=more)
        return
    with pytest.raises(UnsupportedOperators, match="dynamic axis 0"):
        check(LastChunk(), sample(6, 3), **arguments)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_narrow_with_data_dependent_start(dtype: torch.dtype) -> None:
    x, more = sample(3, 6), [sample(2, 6)]
    starts = [torch.tensor(at, dtype=dtype) for at in (1, 4, -2)]
    check(
        lambda x, at: (x.narrow(1, at, 2), torch.narrow(x, -1, at, 1)),
        x,
        starts[0],
        dynamic={0: {0: "n"}},
        more=[(rows, at) for rows in more for at in starts],
    )


def narrowed(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x[0])
    for i in range(x.size(0) - 1):
        total = total * 0.5 + torch.narrow(x, 0, i, 2).sum(0)
    return total


def kept(x: torch.Tensor) -> torch.Tensor:
    """As handwritten recurrent layers read a step: its axis stays."""
    total = torch.zeros_like(x[:1])
    for t in range(x.size(0)):
        total = torch.tanh(total * 0.5 + x[t : t + 1])
    return total


def from_the_end(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x[:1])
    for t in range(x.shape[0]):
        total = total * 0.5 + x[x.size(0) - 1 - t : x.size(0) - t]
    return total


def of_pairs(x: torch.Tensor) -> torch.Tensor:
    total = torch.zeros_like(x[:2])
    for t in range(x.size(0) // 2):
        for s in range(x.size(1)):
            total = total * 0.5 + x[2 * t : 2 * t + 2, s : s + 1]
    return total


def written(x: torch.Tensor) -> torch.Tensor:
    y, total = torch.zeros(2, x.size(0), 3), torch.zeros_like(x[:1])
    for t in range(x.size(0)):
        total = total * 0.5 + x[t : t + 1]
        y[:, t : t + 1] = total
    return y


@pytest.mark.parametrize("loop", [narrowed, kept, from_the_end, of_pairs, written])
def test_slice_with_start_from_a_loop(loop: Callable[..., Any]) -> None:
    graph, more = torch.jit.script(loop).graph, [(sample(2, 3),), (sample(9, 3),)]
    # like every loop that writes rows
    if loop is written and not capabilities.current().strongly_typed:
        with pytest.raises(
            UnsupportedOperators, match=r"8\.6 crashes, or mixes rows up"
        ):
            convert(graph, [sample(5, 3)], dynamic={0: {0: "t"}})
        return
    check(
        graph, sample(5, 3), dynamic={0: {0: "t"}}, spans={"t": (2, 5, 10)}, more=more
    )


def test_slice_beyond_the_axis_in_a_loop_is_refused() -> None:
    def beyond(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x[0])
        for t in range(x.size(0)):
            total = total * 0.5 + x[t : t + 2].sum(0)
        return total

    with pytest.raises(UnsupportedOperators, match="changes between iterations"):
        convert(torch.jit.script(beyond).graph, [sample(5, 3)], dynamic={0: {0: "t"}})
