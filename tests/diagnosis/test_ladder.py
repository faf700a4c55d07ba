"""`verify --ladder`: the step that is wrong fails, and the steps after it pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from builder.diagnosis import Step, climb
from builder.engine import trt
from builder.lowering import LoweredGraph, ir
from builder.pipeline import Order, stages
from tests.diagnosis.planting import order, plant

INPUT = "dtype: float32, shape: [4, 6]"


class Pieces(nn.Module):
    """TensorRT has no QR decomposition: three segments."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.linalg.qr(torch.tanh(self.first(x))).Q.abs()
        return torch.sigmoid(self.last(torch.cat([y, y[:, :2]], 1)))


@pytest.fixture
def pieces(tmp_path: Path) -> Order:
    return order(tmp_path, Pieces(), INPUT, "fallback: {min_block_size: 1}\n")


def climbed(target: Order) -> tuple[list[str], dict[str, Step]]:
    steps = climb(target, None, lambda *_: None)
    return [step.name for step in steps if step.result == "failed"], {
        s.name: s for s in steps
    }


def test_every_step_of_a_model_in_pieces_is_compared(pieces: Order) -> None:
    failed, steps = climbed(pieces)
    assert not failed
    assert list(steps) == [
        "lowered",
        "segment 0 (tensorrt)",
        "network of segment 0",
        "segment 1 (torch)",
        "segment 2 (tensorrt)",
        "network of segment 2",
    ]
    assert all(step.answers == 1 and step.share is not None for step in steps.values())


def test_a_wrong_converter_breaks_its_own_network_only(
    pieces: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    def softsign(ctx: Any, self: Any) -> Any:
        return ctx.net.add_activation(self, trt.ActivationType.SOFTSIGN)

    plant(monkeypatch, "aten::tanh", softsign)
    failed, steps = climbed(pieces)
    assert failed == ["network of segment 0"]
    assert str(steps[failed[0]].problem).startswith("golden p0-opt: output ")
    assert (steps[failed[0]].share or 0) > 100


def test_wrong_segment_is_distinguished_from_a_wrong_network(
    pieces: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment is damaged after its network was made."""

    def damaged(*given: Any, **more: Any) -> stages.Converted:
        found = convert(*given, **more)
        assert found.partitioned is not None
        graph = found.partitioned.partition.segments[2].lowered.graph
        node = next(iter(ir.nodes_of(graph, "aten::abs")))
        node.output().replaceAllUsesWith(node.inputsAt(0))
        return found

    convert = stages.convert
    monkeypatch.setattr(stages, "convert", damaged)
    assert climbed(pieces)[0] == ["segment 2 (tensorrt)"]


def test_a_wrong_pass_breaks_the_lowered_graph_alone(
    pieces: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*given: Any, **more: Any) -> stages.Lowered:
        found = lower(*given, **more)
        node = next(iter(ir.nodes_of(found.graph.graph, "aten::tanh")))
        node.output().replaceAllUsesWith(node.inputsAt(0))
        return found

    lower = stages.lower
    monkeypatch.setattr(stages, "lower", damaged)
    assert climbed(pieces)[0] == ["lowered"]


def test_a_step_that_raises_has_the_reason(
    pieces: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(graph: LoweredGraph, *tensors: Sequence[Tensor]) -> Any:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(LoweredGraph, "run", raises)
    failed, steps = climbed(pieces)
    assert failed[0] == "lowered" and "no kernel" in str(steps["lowered"].problem)
