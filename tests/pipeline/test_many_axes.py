"""Torch runs what has more axes than a TensorRT tensor; engines run the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.errors import UnsupportedOperators, UsageError
from builder.manifest import TensorSpec
from tests.pipeline.test_known_cases import checked, outputs_of
from tests.pipeline.test_messages import saved

MANIFEST = (
    "inputs: [{{name: x, dtype: float32, shape: [batch, {sizes}]}}]\n"
    "dims: {{batch: {{min: 1, opt: 2, max: 4}}}}\n"
)
NINE = ", ".join(["2"] * 8)


class Windows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = (x * 2).relu() + 1
        y = y.view(x.size(0), 2, 2, 2, 2, 2, 2, 2, 2).permute(0, 8, 7, 6, 5, 4, 3, 2, 1)
        return ((y * 2).reshape(x.size(0), -1) + 1).relu() * 3


class Unsqueezed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = (x * 2).relu() + 1
        for _ in range(7):
            y = y.unsqueeze(1)
        return y * 2


class Whole(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.relu() * 2 + 1).sum(-1)


def run(folder: Path, module: nn.Module, sizes: str, x: Tensor) -> list[str]:
    """The segments' kinds of a module whose files give its outputs; warnings name the reason."""
    file = saved(folder, torch.jit.script(module), MANIFEST.format(sizes=sizes))
    model = checked(file, folder / "out")
    (output,) = outputs_of(model.artifact, [x])
    torch.testing.assert_close(output, module(x))
    assert any("more than 8 axes" in text for text in model.warnings)
    assert not any("defect" in text for text in model.warnings)
    partitioned = model.built.converted.partitioned
    assert partitioned is not None
    return [segment.kind for segment in partitioned.partition.segments]


def test_engines_run_before_and_after_nine_axes(tmp_path: Path) -> None:
    kinds = run(tmp_path, Windows(), "256", torch.randn(2, 256))
    assert kinds == ["tensorrt", "torch", "tensorrt"]


def test_result_with_nine_axes_is_served(tmp_path: Path) -> None:
    assert run(tmp_path, Unsqueezed(), "4", torch.randn(2, 4)) == ["tensorrt", "torch"]


def test_input_with_nine_axes_is_served(tmp_path: Path) -> None:
    assert "torch" in run(tmp_path, Whole(), NINE, torch.randn(2, *[2] * 8))


def test_convert_refuses_nine_axes() -> None:
    with pytest.raises(UsageError, match="no tensor of more than 8 axes"):
        builder.convert(
            torch.jit.script(Whole()), [TensorSpec("float32", (2,) * 9, name="x")]
        )
    with pytest.raises(UnsupportedOperators, match="more than 8 axes"):
        builder.convert(
            torch.jit.script(Windows()), [TensorSpec("float32", (2, 256), name="x")]
        )
