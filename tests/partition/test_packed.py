"""Partitioned models with packed sequences: no part of one is an engine's boundary tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import builder
from builder.conversion import nonzero
from builder.manifest.spec import Fallback
from builder.partition import Partition, split

DIMS = {"n": (1, 3, 6), "t": (1, 4, 8)}
INPUTS = ("float32", ("n", "t", 5)), ("int64", ("n",))


def unsupported(x: Tensor) -> Tensor:
    """An operator that TensorRT lacks."""
    return torch.linalg.matrix_exp(x[..., None] * x[..., None, :] / 10)[..., 0]


class Model(nn.Module):
    """Linear layers, one or two packed GRUs, and linear layers; `between` and `after` are hooks."""

    def __init__(
        self,
        between: Callable[..., Any] | None = None,
        after: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5))
        self.first, self.second = nn.GRU(5, 6, batch_first=True), nn.GRU(6, 6)
        self.head = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
        self.between, self.after = between, after

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        x = self.before(x)
        packed, h = self.first(
            pack_padded_sequence(
                x, lengths.cpu(), batch_first=True, enforce_sorted=False
            )
        )
        if self.between:
            packed, h = self.between(self, packed, h)
        y, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.size(1))
        return self.head(self.after(y) if self.after else y), self.head(h)


class PadsToLongest(Model):
    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        x = self.before(x)
        packed, h = self.first(
            pack_padded_sequence(
                x, lengths.cpu(), batch_first=True, enforce_sorted=False
            )
        )
        y, row_lengths = pad_packed_sequence(packed, batch_first=True)
        return self.head(y), self.head(h), row_lengths


class ReturnsPackedData(Model):
    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        packed, h = self.first(
            pack_padded_sequence(
                self.before(x), lengths, batch_first=True, enforce_sorted=False
            )
        )
        return torch.relu(packed.data), self.head(h)


def from_states(model: Any, packed: PackedSequence, h: Tensor) -> Any:
    """A second layer whose initial state an unsupported operator computes."""
    return model.second(packed, unsupported(h))


def from_packed_data(model: Any, packed: PackedSequence, h: Tensor) -> Any:
    """A second layer whose packed rows an unsupported operator computes."""
    rows = PackedSequence(
        unsupported(packed.data),
        packed.batch_sizes,
        packed.sorted_indices,
        packed.unsorted_indices,
    )
    return model.second(rows)


def sample(*lengths: int, steps: int) -> tuple[Tensor, Tensor]:
    return torch.randn(len(lengths), steps, 5), torch.tensor(lengths)


def trace_and_split(model: nn.Module, **fallback: Any) -> tuple[Any, Partition]:
    """The traced model and its partition."""
    traced = torch.jit.trace(model.eval(), sample(2, 4, 1, steps=4), check_trace=False)
    specs = [
        builder.TensorSpec(
            dtype, shape, dims={a: DIMS[a] for a in shape if isinstance(a, str)}
        )
        for dtype, shape in INPUTS
    ]
    return traced, split(
        builder.lower(traced, specs=specs),
        specs,
        [DIMS],
        Fallback(min_block_size=1, **fallback),
    )


def run(partitioned: Partition, *inputs: Tensor) -> list[Tensor]:
    """Every segment in order: torch's by torch, TensorRT's by the network's reference."""
    values = dict(zip(partitioned.inputs, inputs, strict=True))
    for segment in partitioned.segments:
        tensors = [values[name] for name in segment.inputs]
        if segment.kind == "torch":
            result = segment.lowered.run(*tensors)
        else:
            conversion = builder.convert(
                segment.lowered, segment.specs, profiles=segment.profiles
            )
            result = builder.reference.run(conversion, tensors)
        values.update(zip(segment.outputs, result, strict=True))
    return [values[name] for name in partitioned.outputs]


def kinds(partitioned: Partition, operator: str) -> set[str]:
    """The kinds of the segments that contain the operator."""
    return {
        s.kind for s in partitioned.segments if s.lowered.graph.findAllNodes(operator)
    }


CASES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "unsupported operator after": (lambda: Model(after=unsupported), "tensorrt"),
    "unsupported operator on a state": (lambda: Model(between=from_states), "torch"),
    "unsupported operator on packed rows": (
        lambda: Model(between=from_packed_data),
        "torch",
    ),
    "no total_length": (PadsToLongest, "torch"),
    "packed data as an output": (ReturnsPackedData, "torch"),
}
"""By what torch must run: the model, and the library that runs its packed sequences."""


@pytest.mark.parametrize("case", CASES)
def test_packed_sequence_is_never_divided_between_segments(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nonzero, "available", lambda: False)
    make, where = CASES[case]
    traced, partitioned = trace_and_split(make())
    for operator in ("aten::_pack_padded_sequence", "aten::gru"):
        assert kinds(partitioned, operator) == {where}
    assert (
        partitioned.segments[0].kind == "tensorrt"
    )  # the layers before the packed sequence
    assert all(
        spec is not None
        for s in partitioned.segments
        if s.kind == "tensorrt"
        for spec in (*s.specs, *s.output_specs)
    )
    for inputs in (
        sample(2, 4, 1, steps=4),
        sample(3, steps=6),
        sample(1, 5, 5, 2, steps=5),
    ):
        for got, wanted in zip(run(partitioned, *inputs), traced(*inputs), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_packed_sequence_follows_an_operator_kept_in_torch() -> None:
    traced, partitioned = trace_and_split(Model(), ops=("aten::gru",))
    assert [s.kind for s in partitioned.segments] == ["tensorrt", "torch", "tensorrt"]
    assert kinds(partitioned, "aten::_pad_packed_sequence") == {"torch"}
    inputs = sample(2, 4, 1, steps=5)
    for got, wanted in zip(run(partitioned, *inputs), traced(*inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_range_for_the_longest_row_keeps_its_readers_in_tensorrt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(nonzero, "available", lambda: False)
    _, without = trace_and_split(PadsToLongest())
    assert without.open == (("aten::_pad_packed_sequence", "padded_output"),)
    traced, partitioned = trace_and_split(
        PadsToLongest(), ranges={"aten::_pad_packed_sequence": (1, 4, 8)}
    )
    assert [s.kind for s in partitioned.segments] == ["tensorrt", "torch", "tensorrt"]
    assert kinds(partitioned, "aten::linear") == {"tensorrt"}
    inputs = sample(2, 3, 1, steps=6)
    for got, wanted in zip(run(partitioned, *inputs), traced(*inputs), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)
