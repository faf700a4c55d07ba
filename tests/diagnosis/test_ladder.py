"""`verify --ladder`: the wrong step fails, and the steps after it pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from builder.diagnosis import Step, run_steps
from builder.engine import trt
from builder.graph_types import Graph
from builder.lowering import LoweredGraph, ir
from builder.pipeline import Order, stages
from tests.diagnosis.planting import order, plant

INPUT = "dtype: float32, shape: [4, 6]"


class ThreeSegments(nn.Module):
    """TensorRT has no QR decomposition, so the partition has three segments."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.linalg.qr(torch.tanh(self.first(x))).Q.abs()
        return torch.sigmoid(self.last(torch.cat([y, y[:, :2]], 1)))


@pytest.fixture
def segmented(tmp_path: Path) -> Order:
    return order(tmp_path, ThreeSegments(), INPUT, "fallback: {min_block_size: 1}\n")


def ladder(target: Order) -> tuple[list[str], dict[str, Step]]:
    steps = run_steps(target, None, lambda *_: None)
    return [step.name for step in steps if step.result == "failed"], {
        s.name: s for s in steps
    }


def test_every_step_of_partitioned_model_is_compared(segmented: Order) -> None:
    failed, steps = ladder(segmented)
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


def test_wrong_converter_fails_only_its_network(
    segmented: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    def softsign(ctx: Any, self: Any) -> Any:
        return ctx.net.add_activation(self, trt.ActivationType.SOFTSIGN)

    plant(monkeypatch, "aten::tanh", softsign)
    failed, steps = ladder(segmented)
    assert failed == ["network of segment 0"]
    assert str(steps[failed[0]].problem).startswith("golden p0-opt: output ")
    assert (steps[failed[0]].share or 0) > 100


def bypass(graph: Graph, kind: str) -> None:
    """Let the users of the first node of this kind read its input."""
    node = next(iter(ir.nodes_of(graph, kind)))
    node.output().replaceAllUsesWith(node.inputsAt(0))


def change_result(
    monkeypatch: pytest.MonkeyPatch, step: str, change: Callable[[Any], None]
) -> None:
    """Change the result of a step of the pipeline."""
    original = getattr(stages, step)

    def changed(*arguments: Any, **more: Any) -> Any:
        result = original(*arguments, **more)
        change(result)
        return result

    monkeypatch.setattr(stages, step, changed)


def test_wrong_segment_is_distinguished_from_wrong_network(
    segmented: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment's graph is changed after its network was built."""

    def bypass_abs(conversion: stages.Converted) -> None:
        assert conversion.partitioned is not None
        segments = conversion.partitioned.partition.segments
        bypass(segments[2].lowered.graph, "aten::abs")

    change_result(monkeypatch, "convert", bypass_abs)
    assert ladder(segmented)[0] == ["segment 2 (tensorrt)"]


def test_wrong_pass_fails_only_the_lowered_graph(
    segmented: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_result(
        monkeypatch,
        "lower",
        lambda lowered: bypass(lowered.graph.graph, "aten::tanh"),
    )
    assert ladder(segmented)[0] == ["lowered"]


def test_step_that_raises_reports_the_reason(
    segmented: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(graph: LoweredGraph, *tensors: Sequence[Tensor]) -> Any:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(LoweredGraph, "run", raises)
    failed, steps = ladder(segmented)
    assert failed[0] == "lowered" and "no kernel" in str(steps["lowered"].problem)
