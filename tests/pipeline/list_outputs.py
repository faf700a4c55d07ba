"""Modules that return a list whose length is not known before they run."""

from typing import Dict, List, Tuple  # noqa: UP035  # TorchScript's

import torch
from torch import Tensor, nn


class ForLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> List[Tensor]:  # noqa: UP006
        x = self.linear(x)
        found: List[Tensor] = []  # noqa: UP006
        for i in range(int(x.abs().sum().clamp(max=20.0))):
            found.append(x * i)
        return found


class WhileLoop(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, List[Tensor]]:  # noqa: UP006
        found: List[Tensor] = []  # noqa: UP006
        while bool(x.abs().max() > 0.25):
            x = x * 0.5
            found.append(x.sum(0).to(torch.int64))
        return x, found


class AsWritten(nn.Module):
    def forward(self, x: Tensor) -> Dict[str, List[Tensor]]:  # noqa: UP006
        view = torch.as_strided(x, [2], [1])
        view.add_(1)
        found: List[Tensor] = []  # noqa: UP006
        for i in range(x.size(0)):
            if bool(x[i].sum() > 0):
                found.append(x[i])
        return {"rows": found}


class Detections(nn.Module):
    def forward(self, x: Tensor) -> List[Dict[str, Tensor]]:  # noqa: UP006
        found: List[Dict[str, Tensor]] = []  # noqa: UP006
        for i in range(x.size(0)):
            keep = x[i] > 0
            found.append(
                {"scores": x[i][keep], "labels": torch.nonzero(keep).flatten()}
            )
        return found


class Numbered(nn.Module):
    def forward(self, x: Tensor) -> List[Tuple[Tensor, int]]:  # noqa: UP006
        found: List[Tuple[Tensor, int]] = []  # noqa: UP006
        for i in range(x.size(0)):
            if bool(x[i].sum() != 1):
                found.append((x[i], i))
        return found


LISTS = {
    ForLoop: "output",
    WhileLoop: "output_1",
    AsWritten: "rows",
    Detections: "output",
    Numbered: "output",
}
"""The name of the list that each module returns."""
LARGEST = 8
"""The largest length that the manifests declare."""


class Updates(nn.Module):
    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        found: Dict[str, Tensor] = {"a": x, "b": x + 1}  # noqa: UP006
        other: Dict[str, Tensor] = {"a": x - 1, "c": x * 2}  # noqa: UP006
        view = torch.as_strided(x, [2], [1])
        view.add_(1)
        if bool(x.sum() > 0):
            found.update(other)
            found["d"] = found.pop("b")
        return found


class PopsAndInserts(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Dict[str, Tensor], List[Tensor]]:  # noqa: UP006
        found: Dict[str, Tensor] = {"a": x, "b": x + 1}  # noqa: UP006
        if bool(x.sum() > 0):
            found.update({"z": x * 2})
        rows = [x, x + 1, x + 2]
        rows.pop(0)
        if bool(x.sum() > 0):
            rows.insert(0, found["a"] * 3)
        return found, rows


CONTAINERS = (Updates, PopsAndInserts)
