"""The dtypes, axes and sizes that lowering infers must hold, even if a write, a list or a branch
changes the value later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import builder
from builder.errors import UnboundedListError
from builder.lowering import ir, lower


def axis_inserted_in_place(x: Tensor) -> Tensor:
    y = x + 1
    y.unsqueeze_(0)
    return y * 2 if y.dim() == 3 else y * 3


def axis_removed_in_place(x: Tensor) -> Tensor:
    y = x[:1] + 1
    y.squeeze_(0)
    return y * 2 if y.dim() == 1 else y * 3


def input_transposed_in_place(x: Tensor) -> Tensor:
    x.transpose_(0, 1)
    return x * x.size(1)


def list_with_appended_item(x: Tensor) -> Tensor:
    sizes = [3]
    sizes.append(-1)
    y = x.view(sizes)
    return y * 2 if y.dim() == 2 else y * 3


def list_appended_to_in_a_loop(x: Tensor) -> Tensor:
    sizes = [x.size(0)]
    for size in [3, 2]:
        sizes.append(size)
    y = x.view(sizes)
    return y * 2 if y.dim() == 1 else y * y.dim()


def list_item_set_before_cat(x: Tensor) -> Tensor:
    parts = [x]
    parts[0] = x.unsqueeze(0)
    y = torch.cat(parts)
    return y * y.dim()


def list_written_through_a_dictionary(x: Tensor) -> Tensor:
    parts = [x]
    named = {"parts": parts}
    named["parts"].clear()
    named["parts"].append(x.unsqueeze(0))
    y = torch.cat(parts)
    return y * y.dim()


def parts_of_another_rank_are_appended(x: Tensor) -> Tensor:
    parts = x.unbind(0)
    parts.append(x)
    return parts[-1] * 2 if parts[-1].dim() == 1 else parts[-1] * 3


def sizes_copied_and_written(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first, last, transposed = (
        list(x.shape),
        x.size()[:-1],
        torch.jit.annotate(list[int], []),
    )
    first[0] = first[0] * 2
    first[-1] = -1
    last += [3, -1]
    for size in x.t().shape:
        transposed.append(size)
    transposed.reverse()
    return x.reshape(first), x.reshape(last), x.reshape(transposed)


def dtype_of_any_of_uint8(x: Tensor) -> Tensor:
    return x * 2 if x.to(torch.uint8).any().dtype == torch.bool else x * 3


def dtype_of_bucketize(x: Tensor) -> Tensor:
    y = torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]), out_int32=True)
    return y * 2 if y.dtype == torch.int64 else y * 3


def gather_from_a_scalar(x: Tensor) -> Tensor:
    y = x[0, 0].gather(0, torch.tensor([0, 0]))
    return y * 2 if y.dim() == 0 else y * 3


def dtypes_of_arithmetic(x: Tensor) -> Tensor:
    """Combines tensors of float16, float32 and int64 with each other and with numbers."""
    half, integers = x.half(), x.long()
    y = x
    for result in [
        x * 2,
        x - 0.5,
        x / 3,
        half * 2.5,
        half + x,
        integers * 2.5,
        integers / 2,
        integers * integers,
        half - integers,
    ]:
        y = y * (
            2
            if result.dtype == torch.float32
            else 3
            if result.dtype == torch.float16
            else 5
        )
    return y


WEIGHT = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))


class Vector(nn.Module):
    """A linear layer with a one-dimensional weight removes the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(WEIGHT[0])

    def forward(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        y = y * 2 if y.dim() == 1 else y * 3
        return y.reshape(y.size(-1), -1)


class VectorBetweenReshapes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(WEIGHT[0, :3])

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.reshape(x.size(0) * 2, 3), self.weight).reshape(
            x.size(0), 2, -1
        )


class LayerInABranch(nn.Module):
    """The layer runs only if the width is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        y = x.relu()
        if y.shape[-1] == 6:
            return self.norm(y) * 2  # type: ignore[no-any-return]
        return y * y.size(-1)


class WeightsThatAreInputs(nn.Module):
    """Two linear layers of different widths, whose weights are inputs."""

    def forward(self, x: Tensor) -> Tensor:
        wide, narrow = F.linear(x, x).size(1), F.linear(x, x[:1]).size(1)
        y = (
            (x.sum() + torch.arange(wide * 2 * narrow * 3))
            .reshape(wide * 2, narrow, -1)
            .transpose(0, 1)
        )
        return y.reshape(wide, 2, narrow, -1)


FUNCTIONS = [
    axis_inserted_in_place,
    axis_removed_in_place,
    input_transposed_in_place,
    list_with_appended_item,
    list_appended_to_in_a_loop,
    dtype_of_any_of_uint8,
    dtype_of_bucketize,
    gather_from_a_scalar,
    list_item_set_before_cat,
    list_written_through_a_dictionary,
    sizes_copied_and_written,
    dtypes_of_arithmetic,
]
MODULES = [Vector(), VectorBetweenReshapes(), LayerInABranch(), WeightsThatAreInputs()]


@pytest.mark.parametrize(
    "source",
    [*FUNCTIONS, *MODULES],
    ids=lambda s: getattr(s, "__name__", type(s).__name__),
)
def test_inferred_facts_preserve_outputs(source: object) -> None:
    scripted = torch.jit.script(source)
    static = not isinstance(source, LayerInABranch)
    _assert_same_outputs(
        scripted,
        [(2, 6), (2, 8)][: 1 if static else 2],
        ("n", 6) if static else ("n", "d"),
    )


def _assert_same_outputs(
    scripted: object, cases: Sequence[tuple[int, ...]], shape: tuple[object, ...]
) -> None:
    spec = builder.TensorSpec("float32", shape, dims={"n": (1, 2, 8), "d": (1, 6, 8)})
    lowered = builder.lower(_graph_of(scripted), specs=[spec])
    for sizes in cases:
        x = torch.randn(sizes)
        expected = scripted(x.clone())  # type: ignore[operator]
        expected = expected if isinstance(expected, tuple) else (expected,)
        torch.testing.assert_close(tuple(lowered.run(x.clone())), expected)


def _graph_of(scripted: object) -> Any:
    return scripted if isinstance(scripted, nn.Module) else scripted.graph  # type: ignore[attr-defined]


def ranks_of_parts(x: Tensor) -> Tensor:
    y = torch.zeros(x.size(1))
    for row in x.unbind(0):
        y = y + row if row.dim() == 1 else y
    for half in x.chunk(x.size(0), 0):
        y = y + half[0] if half.dim() == 2 else y
    return y


class Cells(nn.Module):
    """The states of one layer are the inputs of the next, which has branches for their rank."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRUCell(6, 8)
        self.lstm = nn.LSTMCell(8, 6)
        self.rnn = nn.RNNCell(6, 8)
        self.layers = nn.ModuleList([nn.GRU(8, 8), nn.RNN(8, 8), nn.GRU(8, 8)])

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.size(0), 8)
        for _ in range(2):
            h = self.gru(x, h)
            x, c = self.lstm(h, (x, x))
            h = self.rnn(c, h)
        y = h.unsqueeze(0)
        for layer in self.layers:
            y, _ = layer(y)
        return y


def sizes_returned(
    x: Tensor,
) -> tuple[Tensor, list[int], list[list[int]], dict[str, list[int]]]:
    y = x.unsqueeze(0)
    shape = y.shape
    if x.size(0) > 2:
        shape = x.shape
    return x, y.shape[-2:], [x.size(), list(y.size())], {"shape": shape}


def test_sizes_of_known_rank_are_outputs() -> None:
    """They were refused as lists of unknown length."""
    scripted = torch.jit.script(sizes_returned)
    spec = builder.TensorSpec("float32", ("n", 6), dims={"n": (1, 2, 8)})
    lowered = builder.lower(scripted.graph, specs=[spec])
    _, *sizes = lowered.run(torch.ones(3, 6))
    assert [int(size) for size in sizes[:9]] == [3, 6, 3, 6, 1, 3, 6, 3, 6]
    assert lowered.flags == {"output_3.shape_2": "output_3.shape_2_is_present"}


def sizes_changed(x: Tensor) -> tuple[Tensor, list[int]]:
    sizes = x.size()
    sizes.append(1)
    return x, sizes


def sizes_of_a_squeezed_input(x: Tensor) -> tuple[Tensor, list[int]]:
    return x, x.squeeze().shape


@pytest.mark.parametrize("source", [sizes_changed, sizes_of_a_squeezed_input])
def test_sizes_of_unknown_length_are_refused(source: object) -> None:
    spec = builder.TensorSpec("float32", ("n", 6), dims={"n": (1, 2, 8)})
    with pytest.raises(UnboundedListError):
        builder.lower(torch.jit.script(source).graph, specs=[spec])


@pytest.mark.parametrize("source", [ranks_of_parts, Cells()])
def test_ranks_of_parts_and_cells_are_known(source: object) -> None:
    """`nn.GRUCell` has such a branch, and a warning said that no golden reaches it."""
    scripted = torch.jit.script(source)
    _assert_same_outputs(scripted, [(2, 6), (3, 6)], ("n", 6))
    spec = builder.TensorSpec("float32", ("n", 6), dims={"n": (1, 2, 8)})
    lowered = builder.lower(_graph_of(scripted), specs=[spec])
    assert not ir.nodes_of(lowered.graph, "prim::If", "aten::dim")


def test_rank_of_a_part_in_a_changed_list_is_unknown() -> None:
    spec = builder.TensorSpec("float32", ("n", 6), dims={"n": (1, 2, 8)})
    changed = torch.jit.script(parts_of_another_rank_are_appended).graph
    unknown = lower(changed, specs=[spec], stop_after="remove-guards")
    assert ir.nodes_of(unknown.graph, "aten::dim")


def test_written_list_has_no_known_items() -> None:
    graph = torch.jit.script(list_with_appended_item).graph
    (built,) = (n for n in ir.nodes_of(graph, "prim::ListConstruct"))
    assert ir.list_items(built.output()) is None and ir.int_list(built.output()) is None
