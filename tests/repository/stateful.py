"""Models with state between requests, each with its manifest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


class Recognizer(nn.Module):
    """A two-layer LSTM over chunks of any length. The batch is the second axis of both states."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTM(6, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(
        self, x: Tensor, h0: Tensor, c0: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.cell(x, (h0, c0))
        return self.head(y), h, c


class Counter(nn.Module):
    """The integer sum of a sequence and its number of requests."""

    def forward(
        self, x: Tensor, total: Tensor, count: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        new = total + x.sum(1)
        return new.unsqueeze(1) * x, new, count + 1


class Filter(nn.Module):
    """A causal convolution of one stream with a fixed size and no batch.

    Its state is the end of the last chunk.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3)

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        whole = torch.cat([past, x], -1)
        return torch.relu(self.conv(whole)), whole[:, :, -2:]


class Spectral(nn.Module):
    """A model that TensorRT runs only in part: a Bessel function between two layers.

    A smoothed spectrum is its state.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Sequential(
            nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU()
        )
        self.after = nn.Sequential(
            nn.Linear(9, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)
        )

    def forward(self, x: Tensor, spectrum: Tensor) -> tuple[Tensor, Tensor]:
        power = torch.special.bessel_j0(self.before(x))[..., :9]
        smooth = 0.7 * spectrum[0] + 0.3 * power
        return self.after(smooth), smooth.unsqueeze(0)


MANIFESTS = {
    "recognizer": """\
inputs:
  - {name: x, dtype: float32, shape: [streams, time, 6]}
  - {name: h0, dtype: float32, shape: [2, streams, 5]}
  - {name: c0, dtype: float32, shape: [2, streams, 5]}
dims:
  streams: {min: 1, opt: 4, max: 8}
  time: {min: 1, opt: 3, max: 7}
outputs: [y, hn, cn]
state:
  - {input: h0, output: hn, initial: h0.npy}
  - {input: c0, output: cn}
instances: 2
""",
    "counter": """\
inputs:
  - {name: x, dtype: int64, shape: [batch, 3]}
  - {name: total, dtype: int64, shape: [batch]}
  - {name: count, dtype: int32, shape: [batch]}
dims: {batch: {min: 1, opt: 4, max: 16}}
outputs: [y, new_total, new_count]
state:
  - {input: total, output: new_total, initial: total.npy}
  - {input: count, output: new_count}
sequences: {max: 2}
""",
    "filter": """\
inputs:
  - {name: x, dtype: float32, shape: [1, 4, 8]}
  - {name: past, dtype: float32, shape: [1, 4, 2]}
outputs: [y, last]
state: [{input: past, output: last}]
""",
    "spectral": """\
inputs:
  - {name: x, dtype: float32, shape: [batch, 16]}
  - {name: spectrum, dtype: float32, shape: [1, batch, 9]}
dims: {batch: {min: 1, opt: 4, max: 8}}
outputs: [y, smooth]
state: [{input: spectrum, output: smooth}]
""",
}
MODULES = {
    "recognizer": Recognizer,
    "counter": Counter,
    "filter": Filter,
    "spectral": Spectral,
}


def module(name: str) -> nn.Module:
    """The module with the same weights in each call."""
    torch.manual_seed(0)
    return MODULES[name]().eval()


def write(folder: Path, *names: str) -> Path:
    """Write the named models, or all, with their manifests and initial states."""
    for name in names or MODULES:
        torch.jit.script(module(name)).save(folder / f"{name}.pt")
        (folder / f"{name}.yaml").write_text(MANIFESTS[name])
    random = np.random.default_rng(0)
    np.save(folder / "h0.npy", random.standard_normal((2, 1, 5)).astype(np.float32))
    np.save(folder / "total.npy", np.array([1000]))
    return folder
