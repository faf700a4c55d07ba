"""Context managers and forks are removed. Objects of other classes are refused by name."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import builder
from builder.errors import LoweringError
from builder.lowering import ir


class NestedContexts(nn.Module):
    """Nested context managers around a branch."""

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
    """Forks a method with an argument, a module, and a list of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def scaled(self, x: Tensor, by: int) -> tuple[Tensor, Tensor]:
        return self.layer(x) * by, x + by

    def forward(self, x: Tensor) -> Tensor:
        one, pair = torch.jit.fork(self.other, x), torch.jit.fork(self.scaled, x, 2)
        tasks = [torch.jit.fork(self.layer, x * i) for i in range(3)]
        a, b = torch.jit.wait(pair)
        parts = [a, b, torch.jit.wait(one)]
        for task in tasks:
            parts.append(torch.jit.wait(task))
        return torch.cat(parts)


@pytest.mark.parametrize("kind", [NestedContexts, Forked])
def test_context_managers_and_forks_are_removed(kind: type[nn.Module]) -> None:
    """`with` was reported as state of the module, and a fork stopped the verifier."""
    torch.manual_seed(0)
    scripted = torch.jit.script(kind().eval())
    lowered = builder.lower(scripted)
    for x in (torch.ones(2, 4), -torch.ones(1, 4)):
        torch.testing.assert_close(lowered.run(x)[0], scripted(x))
    removed = (
        "prim::CreateObject",
        "prim::Enter",
        "prim::Exit",
        "prim::SetAttr",
        "prim::fork",
        "aten::wait",
    )
    assert not ir.nodes_of(lowered.graph, *removed)


def test_function_graph_with_context_manager_is_lowered() -> None:
    @torch.jit.script
    def without_gradients(x: Tensor) -> Tensor:
        with torch.no_grad():
            return x * 2

    lowered = builder.lower(without_gradients.inlined_graph)
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
def test_object_of_torchscript_class_is_refused_by_name(
    module: nn.Module, name: str, fix: str
) -> None:
    with pytest.raises(
        LoweringError, match=rf"an object of the class \S*\.{name} is created"
    ) as error:
        builder.lower(torch.jit.script(module))
    assert "test_contexts.py:" in error.value.where and fix in error.value.fix


@torch.jit.interface
class Layer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pass


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class ChosenLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Doubled(), Doubled()])

    def forward(self, x: Tensor, index: int) -> Tensor:
        layer: Layer = self.layers[index]
        return layer.forward(x)


def test_module_chosen_by_value_is_refused_with_its_line() -> None:
    """torch's own error was reported as a defect."""
    with pytest.raises(LoweringError, match="chooses a module of a list") as error:
        builder.lower(torch.jit.script(ChosenLayer()))
    assert "test_contexts.py:" in error.value.where and "for i," in error.value.fix
