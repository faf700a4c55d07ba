"""Detectors with torchvision's nms are served; torchvision itself is not needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

OPERATOR = """
import torch

library = torch.library.Library("torchvision", "DEF")
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def nms(boxes, scores, threshold):
    areas, kept = (boxes[:, 2:] - boxes[:, :2]).prod(1), []
    for i in scores.argsort(descending=True, stable=True).tolist():
        low = [torch.maximum(boxes[i, :2], boxes[j, :2]) for j in kept]
        high = [torch.minimum(boxes[i, 2:], boxes[j, 2:]) for j in kept]
        shared = [(h - l).clamp(min=0).prod() for l, h in zip(low, high)]
        unions = [areas[i] + areas[j] - s for j, s in zip(kept, shared)]
        if all(float(s / u) <= threshold for s, u in zip(shared, unions)):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.int64)


library.impl("nms", nms, "CPU")
"""
DETECTOR = """
import nms
import torch
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3, 4, 1), nn.ReLU())
        self.box, self.score = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 3, 1)

    def forward(self, x):
        features = self.body(x)
        corner, size = self.box(features).flatten(2)[0].t().chunk(2, 1)
        boxes = torch.cat([corner * 8, corner * 8 + size.exp() * 4], 1)
        scores, labels = self.score(features).flatten(2)[0].t().sigmoid().max(1)
        confident = torch.where(scores > 0.4)[0]
        boxes, scores, labels = boxes[confident], scores[confident], labels[confident]
        apart = boxes + (labels.to(boxes) * (boxes.max() + 1))[:, None]
        kept = torch.ops.torchvision.nms(apart, scores, 0.5)[:10]
        return boxes[kept], scores[kept], labels[kept]


torch.manual_seed(0)
with torch.no_grad():
    module = Detector().eval()
    torch.jit.trace(module, torch.rand(1, 3, 32, 32)).save("traced.pt")
    torch.jit.script(module).save("scripted.pt")
"""
MAIN = "from builder.cli import main\nmain()"
MANIFEST = """inputs: [{name: x, dtype: float32, shape: [1, 3, 32, 32]}]
libraries: [nms.py]
"""


@pytest.mark.slow
def test_detectors_with_nms_are_served_in_segments(tmp_path: Path) -> None:
    """In separate processes, because the operator cannot be defined twice in one. `repo` compares
    what it publishes with the module.
    """
    models = tmp_path / "models"
    models.mkdir()
    (models / "nms.py").write_text(OPERATOR)
    (tmp_path / "detector.py").write_text(DETECTOR)
    subprocess.run(
        [sys.executable, tmp_path / "detector.py"],
        cwd=models,
        check=True,
        env={"PYTHONPATH": str(models)},
    )
    for name in ("traced", "scripted"):
        (models / f"{name}.yaml").write_text(MANIFEST)
    command = [sys.executable, "-c", MAIN, "repo", "models", "--out", "out"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    table = [line.split() for line in process.stdout.splitlines()]
    rows = [" ".join(words) for words in table if words[1:2] == ["built"]]
    assert sorted(row.partition(" fp32")[0] for row in rows) == [
        "scripted built 1 TensorRT, 1 torch",
        "traced built 1 TensorRT, 1 torch",
    ], process.stdout
