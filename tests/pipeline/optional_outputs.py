"""Modules with an output that is None on one path, by data or by size."""

from typing import Dict, List, NamedTuple, Optional, Tuple  # noqa: UP035  # TorchScript's

import torch
from torch import Tensor, nn


class ByData(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tuple[Tensor, Optional[Tensor]]:  # noqa: UP006, UP045
        x = self.linear(x)
        if bool(x.sum() > 0):
            return (x, None)
        return (x, x + 1)


class BySize(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, Optional[Tensor]]:  # noqa: UP006, UP045
        if x.size(0) > 2:
            return (x, None)
        return (x, x + 1)


class Detection(NamedTuple):
    scores: Tensor
    boxes: Optional[Tensor]  # noqa: UP045


class InNamedTuple(nn.Module):
    def forward(self, x: Tensor) -> Detection:
        boxes: Optional[Tensor] = None  # noqa: UP045
        if bool(x.mean() > 0):
            boxes = x * 2
        return Detection(x.relu(), boxes)


class AsDictionary(nn.Module):
    def forward(self, x: Tensor) -> Optional[Dict[str, Tensor]]:  # noqa: UP006, UP045
        if bool(x.sum() > 0):
            return {"a": x, "b": x + 1}
        return None


class Alone(nn.Module):
    def forward(self, x: Tensor) -> Optional[Tensor]:  # noqa: UP045
        if bool(x.sum() > 0):
            return x
        return None


class OfSubmodule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = ByData()

    def forward(self, x: Tensor) -> Tuple[Dict[str, Tensor], Optional[Tensor]]:  # noqa: UP006, UP045
        y, more = self.inner(x)
        return {"y": y}, more


class SeveralReturns(nn.Module):
    def forward(
        self, x: Tensor
    ) -> Tuple[Tensor, Optional[Tensor], Optional[Tuple[Tensor, Tensor]]]:  # noqa: UP006, UP045
        if bool(x.sum() > 3):
            return x, None, None
        if bool(x.sum() > 0):
            return x, x * 2, None
        if x.size(0) > 2:
            return x, None, (x * 3, x + 3)
        return x * 4, x - 1, (x, x + 2)


class OfLoop(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, Optional[Tensor]]:  # noqa: UP006, UP045
        last: Optional[Tensor] = None  # noqa: UP045
        for i in range(int(x[0, 0].clamp(min=0))):
            last = x + i
        return x, last


class ListOfTwoLengths(nn.Module):
    def forward(self, x: Tensor) -> List[Tensor]:  # noqa: UP006
        if bool(x.sum() > 0):
            return [x, x + 1]
        return [x]


class WritesInPlace(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, Optional[Tensor]]:  # noqa: UP006, UP045
        view = torch.as_strided(x, [2], [1])
        view.add_(1)
        if bool(x.sum() > 0):
            return x, None
        return x, view


class HardlyEver(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, Optional[Tensor]]:  # noqa: UP006, UP045
        if bool((x[0, 0] == 0.12345678) & (x[0, 1] == 0.87654321)):
            return x, x + 1
        return x, None


class KeyOnOnePath(nn.Module):
    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        found = {"a": x}
        if bool(x.sum() > 0):
            found["b"] = x + 1
        found["c"] = x - 1
        found["a"] = x * 2
        return found


class AppendsOnOnePath(nn.Module):
    def forward(self, x: Tensor) -> Tuple[Tensor, List[Tensor]]:  # noqa: UP006
        view = torch.as_strided(x, [2], [1])
        view.add_(1)
        found = [x]
        found.append(view)
        if bool(x.sum() > 0):
            found.append(x * 2)
        found[0] = x - 1
        return x, found


class KeysInLoop(nn.Module):
    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        found: Dict[str, Tensor] = {}  # noqa: UP006
        for i in range(int(x.abs().sum())):
            if i == 1:
                found["one"] = x * i
            else:
                found["other"] = x + i
        return found


MODULES = (
    ByData,
    BySize,
    InNamedTuple,
    AsDictionary,
    Alone,
    OfSubmodule,
    SeveralReturns,
    OfLoop,
    ListOfTwoLengths,
    WritesInPlace,
    KeyOnOnePath,
    AppendsOnOnePath,
    KeysInLoop,
)
