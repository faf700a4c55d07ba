"""What stands around a computation is dropped: contexts, forks; objects that hold values are
refused by name.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.errors import LoweringError
from builder.lowering import ir


class Quiet(nn.Module):
    """A branch within contexts, one in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.layer(x)
            with torch.autograd.profiler.record_function("branch"):
                if bool(y.sum() > 0):
                    y = y + 1
        return y.detach() * x


class Forked(nn.Module):
    """A method with an argument, a module, and a list of what is awaited."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def scaled(self, x: Tensor, by: int) -> tuple[Tensor, Tensor]:
        return self.layer(x) * by, x + by

    def forward(self, x: Tensor) -> Tensor:
        one, pair = torch.jit.fork(self.other, x), torch.jit.fork(self.scaled, x, 2)
        some = [torch.jit.fork(self.layer, x * i) for i in range(3)]
        a, b = torch.jit.wait(pair)
        parts = [a, b, torch.jit.wait(one)]
        for each in some:
            parts.append(torch.jit.wait(each))
        return torch.cat(parts)


@pytest.mark.parametrize("kind", [Quiet, Forked])
def test_what_stands_around_is_dropped(kind: type[nn.Module]) -> None:
    """`with` was told as state of the module, and a fork ended the verifier."""
    torch.manual_seed(0)
    scripted = torch.jit.script(kind().eval())
    lowered = builder.lower(scripted)
    for x in (torch.ones(2, 4), -torch.ones(1, 4)):
        torch.testing.assert_close(lowered.run(x)[0], scripted(x))
    gone = (
        "prim::CreateObject",
        "prim::Enter",
        "prim::Exit",
        "prim::SetAttr",
        "prim::fork",
        "aten::wait",
    )
    assert not ir.nodes_of(lowered.graph, *gone)


def test_a_function_that_is_given_as_a_graph() -> None:
    @torch.jit.script
    def quiet(x: Tensor) -> Tensor:
        with torch.no_grad():
            return x * 2

    lowered = builder.lower(quiet.inlined_graph)
    torch.testing.assert_close(lowered.run(torch.ones(3))[0], torch.full((3,), 2.0))


@torch.jit.script
class Total:
    def __init__(self, value: Tensor) -> None:
        self.value = value

    def add(self, value: Tensor) -> None:
        self.value = self.value + value


class Totals(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        total = Total(x)
        total.add(x * 2)
        return total.value


class Mixed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu"):
            return x @ x


class OldAutocast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.cuda.amp.autocast(enabled=False):
            return x @ x


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("module", "name", "fix"),
    [
        (Totals(), "Total", "variables"),
        (Mixed(), "autocast", "manifest"),
        (OldAutocast(), "autocast", "manifest"),
    ],
)
def test_an_object_is_refused_by_its_name(
    module: nn.Module, name: str, fix: str
) -> None:
    with pytest.raises(
        LoweringError, match=rf"an object of the class \S*\.{name} is created"
    ) as error:
        builder.lower(torch.jit.script(module))
    assert "test_regions.py:" in error.value.where and fix in error.value.fix
