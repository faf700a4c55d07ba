from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.export import Dim


class Small(torch.nn.Module):
    """Two layers in a list, a dictionary among the arguments, and a size that is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)]
        )

    def forward(
        self, x: torch.Tensor, extra: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return {"whole": x + extra["bias"], "halves": x.reshape(x.shape[0] * 2, -1)}


def exported_small() -> torch.export.ExportedProgram:
    torch.manual_seed(0)
    batch = Dim("batch", min=2, max=16)
    arguments = (torch.randn(4, 4), {"bias": torch.randn(4)})
    shapes = {"x": {0: batch}, "extra": {"bias": None}}
    return torch.export.export(Small().eval(), arguments, dynamic_shapes=shapes)


@pytest.fixture(scope="session")
def small() -> torch.export.ExportedProgram:
    return exported_small()


@pytest.fixture(scope="session")
def small_file(tmp_path_factory: pytest.TempPathFactory, small: object) -> Path:
    path = tmp_path_factory.mktemp("exported") / "small.pt2"
    torch.export.save(small, path)
    return path
