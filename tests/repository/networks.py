"""Models that TensorRT runs only in part, each with its manifest."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from builder.torchscript.plugins import load_libraries


def base(name: str) -> str:
    """A model name without the hash at the end of a step name."""
    return re.sub(r"(?<=\.)(\d+\.(?:torch|tensorrt))\.[0-9a-f]{12}$", r"\1", name)


def step(repository: Path, name: str) -> Path:
    """The folder of the step with this name before the hash."""
    (folder,) = (path for path in repository.iterdir() if base(path.name) == name)
    return folder


def convolutions(stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=stride, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.ReLU(),
    )


class SalientCnn(nn.Module):
    """A CNN with a data-dependent operator in the middle: distinct large activations set a gain."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = convolutions()
        self.head = nn.Sequential(
            nn.Conv2d(8, 8, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 64, 10),
        )

    def forward(self, image: Tensor) -> Tensor:
        y = self.stem(image)
        salient = torch.unique(torch.masked_select(y, y > 0.2))
        return self.head(y + (salient - salient.mean()).abs().cumsum(0)[-1] / 100)


class Detector(nn.Module):
    """A CNN with a detection head and greedy non-maximum suppression in a loop at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.features = convolutions(stride=2)
        self.boxes, self.scores = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 1, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.features(image)
        corners = torch.sigmoid(self.boxes(y)).flatten(2).transpose(1, 2)[0]
        scores = torch.sigmoid(self.scores(y)).flatten()
        boxes = torch.cat([corners[:, :2], corners[:, :2] + corners[:, 2:] + 0.1], 1)
        keep = suppress(boxes, scores)
        return boxes[keep], scores[keep], keep


def suppress(boxes: Tensor, scores: Tensor) -> Tensor:
    """Indices of the boxes that no box with a higher score overlaps by half, highest score first."""
    order = torch.argsort(scores, descending=True)
    kept: list[Tensor] = []
    while order.numel() > 0:
        best = order[0]
        kept.append(best)
        rest = order[1:]
        low = torch.maximum(boxes[best, :2], boxes[rest, :2])
        high = torch.minimum(boxes[best, 2:], boxes[rest, 2:])
        overlap = (high - low).clamp(min=0).prod(1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
        order = rest[overlap / (area[best] + area[rest] - overlap) < 0.5]
    return torch.stack(kept)


class Gated(nn.Module):
    """A transformer layer before a branch on data (prim::If); ids are bounded by the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.query, self.key, self.value = (
            nn.Linear(16, 16),
            nn.Linear(16, 16),
            nn.Linear(16, 16),
        )
        self.feed = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
        self.out = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        scores = torch.matmul(self.query(x), self.key(x).transpose(1, 2)) / 4.0
        x = x + torch.matmul(torch.sigmoid(scores), self.value(x))
        x = x + self.feed(x)
        if bool((ids == 3).any()):
            x = torch.special.bessel_j0(x) * 2
        else:
            x = x - torch.unique(ids).numel()
        return self.out(x)


class Mixture(nn.Module):
    """Two experts after an operator that TensorRT lacks. The data select one; one has a branch too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8)
        )
        self.left = nn.Sequential(
            nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)
        )
        self.right = nn.Sequential(
            nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.special.bessel_j0(self.stem(x))
        if bool(y.sum() + 9 * x.sum() > 0) and bool(x.sum() > -100):
            z = self.left(y) * x.size(0)
        else:
            z = self.right(torch.special.bessel_j0(y))
            if bool(x.sum() < 0):
                z = self.left(z + 1)
        return torch.special.bessel_j0(z + y)


class Decoder(nn.Module):
    """A loop as in T5: one encoder run, then greedy decoding to the end token, at most eight steps."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.encoder = nn.Sequential(
            nn.Linear(16, 32),
            nn.ReLU(),
            nn.Linear(32, 16),
            nn.ReLU(),
            nn.Linear(16, 16),
        )
        self.step, self.head = nn.Linear(32, 16), nn.Linear(16, 20)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        memory = self.encoder(self.embed(ids)).sum(1)
        state = torch.zeros_like(memory)
        token = torch.zeros([ids.size(0)], dtype=torch.long)
        tokens = [token]
        while len(tokens) < 8 and not bool((token == 1).all()):
            state = torch.tanh(
                self.step(torch.cat([memory + state, self.embed(token)], 1))
            )
            token = self.head(state).argmax(1)
            tokens.append(token)
        return torch.stack(tokens, 1), memory


class BoundaryTensors(nn.Module):
    """Boundary tensors: 0-d, bool and int64. Outputs: an input, a repeated value, a constant, and a
    view of another output.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
        self.register_buffer("scale", torch.tensor([1.5, -2.0]))

    def forward(
        self, x: Tensor, n: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        y = torch.relu(self.first(x) * 2 + 1)
        mask, total, count = y > 0.5, y.sum(), n + n * 3
        spectrum = torch.special.bessel_j0(y.masked_fill(mask, 0.0) + total + count)
        z = self.second(torch.relu(spectrum.sum() + y) * total + count)
        return z, x, z, self.scale, z[:, :2], mask


class Regions(nn.Module):
    """A detector whose second stage classifies a data-dependent number of candidates."""

    def __init__(self) -> None:
        super().__init__()
        self.features = convolutions()
        self.classifier = nn.Sequential(
            nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5)
        )

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        y = self.features(image)[0]
        strength = y.mean(0)
        indices = torch.nonzero(strength > strength.mean())
        candidates = y[:, indices[:, 0], indices[:, 1]].transpose(0, 1)
        return torch.softmax(self.classifier(candidates), 1), indices


STAMP = """
import torch

if not hasattr(torch.ops.trt_build_tests, "stamp"):  # one process may load this file from several folders
    library = torch.library.Library("trt_build_tests", "FRAGMENT")
    library.define("stamp(Tensor x, float strength) -> Tensor")
    library.impl("stamp", lambda x, strength: x + strength * torch.sin(x.cumsum(-1)), "CompositeExplicitAutograd")
    torch.library.register_fake("trt_build_tests::stamp", lambda x, strength: torch.empty_like(x), lib=library)
"""
"""A library with a custom operator, which the serving process loads too."""


class Watermarked(nn.Module):
    """A model with a custom torch.library operator in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(
            nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()
        )
        self.after = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.after(torch.ops.trt_build_tests.stamp(self.before(x), 0.5))


@dataclass(frozen=True)
class Case:
    module: Callable[[], nn.Module]
    inputs: list[dict[str, Any]]
    dims: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)


IMAGE = {"name": "image", "dtype": "float32", "shape": [1, 3, 8, 8]}
IDS = {"name": "ids", "dtype": "int64", "shape": ["batch", "length"]}
TEXT = {"batch": (1, 2, 4), "length": (1, 5, 9)}
FOUND = {
    "ops": ["aten::nonzero"],
    "ranges": {"aten::nonzero": {"min": 1, "opt": 24, "max": 64}},
}
CASES = {
    "salient": Case(
        SalientCnn, [{**IMAGE, "shape": ["batch", 3, 8, 8]}], {"batch": (1, 2, 4)}
    ),
    "detector": Case(Detector, [IMAGE], more={"outputs": ["boxes", "scores", "keep"]}),
    "gated": Case(Gated, [IDS], TEXT),
    "regions": Case(
        Regions,
        [IMAGE],
        more={"outputs": ["scores", "indices"], "fallback": FOUND},
    ),
    "mixture": Case(
        Mixture,
        [{"name": "x", "dtype": "float32", "shape": ["batch", 8]}],
        {"batch": (1, 2, 4)},
        {"fallback": {"min_block_size": 1}},
    ),
    "decoder": Case(Decoder, [IDS], TEXT, {"outputs": ["tokens", "memory"]}),
    "crossings": Case(
        BoundaryTensors,
        [
            {"name": "x", "dtype": "float32", "shape": ["batch", 8]},
            {"name": "n", "dtype": "int64", "shape": [1]},
        ],
        {"batch": (1, 2, 4)},
        {"fallback": {"min_block_size": 1}},
    ),
    "watermarked": Case(
        Watermarked,
        [{"name": "x", "dtype": "float32", "shape": ["batch", 8]}],
        {"batch": (1, 2, 4)},
        {"libraries": ["stamp.py"]},
    ),
}


def write(folder: Path, names: list[str] | None = None) -> None:
    """Write each case as `<name>.pt` and `<name>.yaml` to the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stamp.py").write_text(STAMP)
    load_libraries([folder / "stamp.py"])
    for name in names or CASES:
        case = CASES[name]
        torch.manual_seed(0)
        torch.jit.script(case.module().eval()).save(str(folder / f"{name}.pt"))
        dims = {
            axis: dict(zip(("min", "opt", "max"), span, strict=True))
            for axis, span in case.dims.items()
        }
        manifest = {
            "inputs": case.inputs,
            **({"dims": dims} if dims else {}),
            **case.more,
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(manifest))
