"""Goldens from rows of data: shapes, order, and what the module does not accept."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from builder.manifest import ModelSpec, State, TensorSpec
from builder.parity import record_goldens
from builder.parity.rows import Rows

SPANS = {"batch": (1, 2, 5), "time": (1, 3, 8)}


class Masked(nn.Module):
    """The mean of the first `length` steps of each row."""

    def forward(self, x: Tensor, length: Tensor) -> Tensor:
        if bool((length > x.size(1)).any()):
            raise RuntimeError("a length is beyond the steps")
        steps = torch.arange(x.size(1))[None, :] < length[:, None]
        return (x * steps[..., None]).sum(1) / length[:, None]


class Counter(nn.Module):
    """Adds each request to its state."""

    def forward(self, x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, total + x


def spec_of(*inputs: TensorSpec, **settings: object) -> ModelSpec:
    return ModelSpec("net", "net.pt", inputs, **settings)  # type: ignore[arg-type]


def test_rows_are_taken_once_each_and_then_again() -> None:
    spec = TensorSpec("float32", ("batch", 1), {"batch": (0, 2, 5)}, "x")
    rows = Rows([spec], [[torch.arange(3.0)[:, None]]], seed=1)
    first = rows.take({"batch": 2})["x"].ravel().tolist()
    second = rows.take({"batch": 4})["x"].ravel().tolist()
    assert sorted([*first, second[0]]) == [0.0, 1.0, 2.0]
    assert second[1:] == [*first, second[0]]
    assert rows.take({"batch": 0})["x"].shape == (0, 1)
    assert not Rows([spec], [], seed=1).take({"batch": 2})


@pytest.mark.parametrize("length", [3, 8])
def test_other_axes_are_cut_or_repeated(length: int) -> None:
    spec = TensorSpec("float32", ("batch", "time"), SPANS, "x")
    rows = Rows([spec], [[torch.arange(5.0)[None]]], seed=0)
    taken = rows.take({"batch": 1, "time": length})["x"]
    assert taken.tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 1.0, 2.0][:length]]


def test_floats_are_kept_where_the_module_does_not_accept_the_rows() -> None:
    """Rows of five steps are cut to fewer, which are then less than their length."""
    x = TensorSpec("float32", ("batch", "time", 2), SPANS, "x")
    length = TensorSpec("int64", ("batch",), {"batch": SPANS["batch"]}, "length")
    data = [torch.rand(4, 5, 2) + 7, torch.full((4,), 5)]
    module = torch.jit.script(Masked())
    goldens = record_goldens(module, spec_of(x, length), data=[data]).goldens
    assert {golden.name for golden in goldens} >= {"p0-opt", "p0-max", "p0-min"}
    assert all((golden.inputs["x"] >= 7).all() for golden in goldens)
    lengths = {golden.name: golden.inputs["length"] for golden in goldens}
    assert (lengths["p0-max"] == 5).all() and (lengths["p0-opt"] <= 3).all()


def test_requests_of_sequences_are_rows() -> None:
    spans = {"batch": (1, 1, 4)}
    x = TensorSpec("float32", ("batch", 2), spans, "x")
    total = TensorSpec("float32", ("batch", 2), spans, "total")
    spec = spec_of(x, total, outputs=("y", "sum"), state=(State("total", "sum"),))
    data = [torch.rand(9, 2) + 7, torch.zeros(9, 2)]
    goldens = record_goldens(torch.jit.script(Counter()), spec, data=[data]).goldens
    requests = [golden for golden in goldens if golden.name.startswith("sequence")]
    assert requests and all((golden.inputs["x"] >= 7).all() for golden in requests)
