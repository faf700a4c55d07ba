"""Small modules on which TensorRT, conversion or lowering fails or refuses."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from tests.pipeline.known_cases import OneArgumentWhere, Shifted, Sorted

MANIFEST = """\
inputs:
  - {name: x, dtype: float32, shape: [batch, n]}
dims:
  batch: {min: 1, opt: 2, max: 4}
  n: {min: 3, opt: 4, max: 8}
"""


class Whole(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.relu() * 2


class Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x[:, :3])


class ShortenByData(nn.Module):
    """TensorRT for RTX refuses the branch that conversion creates for it."""

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 0):
            x = x[:, :2]
        return x * 2


class FactorByData(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if bool(x.sum() > 6):
            return x * 2
        elif bool(x.sum() > 0):
            return x * 3
        else:
            return x * 4


class IntegerBias(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(3, 3) + torch.arange(3)


class FilledDictionary(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: dict[str, Tensor] = {}
        for index, value in enumerate([x, x * 2]):
            found[str(index)] = value
        return found["0"] + found["1"]


class Masked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        limit = torch.ones_like(x)
        mask = x < limit
        limit[mask] = x[mask]
        return limit


class Repeated(nn.Module):
    """A loop whose trip count depends on data."""

    def forward(self, x: Tensor) -> Tensor:
        y = x
        while bool(y.sum() < 10):
            y = y + x.abs() + 1
        return y


class Named(nn.Module):
    """No endpoint can have its second output."""

    def forward(self, x: Tensor) -> tuple[Tensor, str]:
        return x * 2, "cat"


class OfFourColumns(nn.Module):
    """Does not accept what its manifest declares."""

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.ones(11, 3)


REFUSED_BY_RTX = (ShortenByData, FactorByData)
SERVED = (
    Whole,
    *REFUSED_BY_RTX,
    IntegerBias,
    FilledDictionary,
    Masked,
    Shifted,
    Sorted,
    OneArgumentWhere,
    Repeated,
)
FAILING = (Named, OfFourColumns)


def save(folder: Path, module: nn.Module, more: str = "", name: str = "m") -> Path:
    """The module, scripted, and its manifest in `folder`, which is returned."""
    folder.mkdir(exist_ok=True, parents=True)
    torch.manual_seed(0)
    torch.jit.script(module.eval()).save(str(folder / f"{name}.pt"))
    manifest = MANIFEST
    if isinstance(module, IntegerBias):
        manifest = manifest.replace("[batch, n]", "[batch, 3]").replace(
            "  n: {min: 3, opt: 4, max: 8}\n", ""
        )
    (folder / f"{name}.yaml").write_text(manifest + more)
    return folder
