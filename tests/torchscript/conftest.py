"""Small TorchScript files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = torch.nn.Sequential(Encoder(), torch.nn.BatchNorm1d(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x) + 1

    @torch.jit.export
    def forward_features(
        self, x: torch.Tensor, scale: float = 2.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.encoder(x) * scale, x


@pytest.fixture
def net() -> torch.nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def file(tmp_path: Path, net: torch.nn.Module) -> Path:
    path = tmp_path / "net.pt"
    torch.jit.script(net).save(str(path))
    return path
